"""`drafted` applies the rules, and makes a gap of every field that follows from a key whose value nobody knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, parse, show
from rftd.daemon.config.issue import Issue
from rftd.daemon.config.verl.draft import ExperimentDraft, Gap
from rftd.daemon.config.verl.settings import VerlSetting, VerlSettings
from rftd.daemon.config.verl.table import VerlKey, find

_MOST_DRAFTS: Final = 48
_IMAGES: Final = "data.image_key"
_NUMBERS: Final = (1, 2, 4, 8, 64, 256, 1024)
"""Tried for a number of which nothing is known."""


@dataclass(frozen=True, slots=True)
class _Undecided:
    """Keys that ask for something that a person has to build or choose: the field that says it is a gap."""

    name: re.Pattern[str]
    target: str
    note: str
    asks: Callable[[Any], bool]


def _is_on(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value not in ("", "False", "false"))


def _is_given(value: Any) -> bool:
    return value not in (None, "", False)


def _undecided(name: str, target: str, note: str, asks: Callable[[Any], bool]) -> _Undecided:
    return _Undecided(re.compile(name), target, note, asks)


def _workflow(name: str, note: str, asks: Callable[[Any], bool]) -> _Undecided:
    """Keys that ask for a workflow of one's own."""
    return _undecided(name, "buffer.explorer_input.default_workflow_type", note, asks)


def _reward(name: str, note: str, asks: Callable[[Any], bool]) -> _Undecided:
    """Keys that ask for a reward of one's own."""
    return _undecided(name, "buffer.explorer_input.default_reward_fn_type", note, asks)


_UNDECIDED: Final = (
    _workflow(
        r"data\.(image|video|audio)_key",
        "images, videos and sounds are not read: a workflow of your own has to",
        lambda value: _is_given(value) and value not in ("videos", "audios"),
    ),
    _workflow(
        r"actor_rollout_ref\.rollout\.multi_turn\.enable",
        "turns and tools are a workflow's: docs/agent_programs.md",
        _is_on,
    ),
    _workflow(
        r"data\.(tool_config_path|function_tool_path)|actor_rollout_ref\.rollout\.agent\.agent_loop_config_path"
        r"|actor_rollout_ref\.rollout\.multi_turn\.(tool|interaction)_config_path",
        "tools are a workflow's: docs/agent_programs.md",
        _is_given,
    ),
    _workflow(
        r"actor_rollout_ref\.rollout\.agent\.default_agent_loop",
        "an agent loop is written as a workflow: docs/agent_programs.md",
        lambda value: _is_given(value) and value != "single_turn_agent",
    ),
    _workflow(
        r"data\.custom_cls\.path",
        "a dataset class is written as a workflow: docs/extending.md",
        _is_given,
    ),
    _reward(
        r"(reward\.)?custom_reward_function\.path",
        "a reward of your own is installed as a plug-in: docs/extending.md",
        _is_given,
    ),
    _reward(
        r"(reward_model|reward)\.sandbox_fusion\.url|sandbox_fusion\.url",
        "a reward that runs code is installed as a plug-in: docs/extending.md",
        _is_given,
    ),
    _reward(
        r"reward_model\.enable",
        "a reward of your own has to ask the reward model in explorer.auxiliary_models: docs/extending.md",
        _is_on,
    ),
    _undecided(
        r"(actor_rollout_ref|critic)\..*\bqat\.enable",
        "trainer.engine_args.dtype",
        "training for low precision is not here: float32 or bfloat16",
        _is_on,
    ),
    _workflow(
        r"max_turns|do_search|retriever\..*|rllm\..*|data\.max_(start|obs)_length|algorithm\.no_think_rl",
        "turns with a search engine or an agent are a workflow's: docs/agent_programs.md",
        _is_given,
    ),
    _undecided(
        r"trainer\.remove_clip",
        "algorithm.policy_loss_fn",
        "reinforce has no clip",
        _is_on,
    ),
    _undecided(
        r"trainer\.spo\.enable|algorithm\.use_pf_ppo|reward_model\.prime_model\.path|data\.filter_accuracy",
        "algorithm.advantage_fn",
        "nothing here weights experiences so",
        _is_on,
    ),
    _undecided(
        r"algorithm\.rollout_correction\.rollout_(token_veto_threshold|rs_threshold_lower)",
        "algorithm.rollout_correction.rollout_rs_threshold",
        "both bounds, LOWER_UPPER; a veto is a criterion of rollout_rs",
        _is_given,
    ),
    _undecided(
        r"distillation\.enabled",
        "algorithm.algorithm_type",
        "on_policy_distill, with the teacher in explorer.auxiliary_models",
        _is_on,
    ),
)


def drafted(settings: VerlSettings, rules: Callable[[ExperimentDraft], None]) -> ExperimentDraft:
    """The draft that the rules make of the settings, its gaps included; `settings.issues` say what was wrong.

    A key that is not known is given one value after another that it may have. A field that is not the same with all of
    them follows from it, and so does every field that a rule makes of it by name.
    """
    working = {name: _candidates(setting, find(name))[0] for name, setting in _unknown(settings).items()}
    draft, issues = _attempt(settings, working, rules)
    if draft.wanted:
        # What is a variable of the environment is resolved where the file is submitted, unless more depends on it.
        for name, why in draft.wanted.items():
            assert name in settings.given, name
            settings.given[name] = replace(settings.given[name], value=None, unknown=why)
            working[name] = _candidates(settings.given[name], find(name))[0]
        draft, issues = _attempt(settings, working, rules)
    drafts_of: dict[str, list[tuple[Any, ExperimentDraft]]] = {}
    attempts = 0
    for name, setting in _unknown(settings).items():
        for value in _candidates(setting, find(name)):
            if attempts >= _MOST_DRAFTS:
                break
            attempts += 1
            other, wrong = _attempt(settings, {**working, name: value}, rules)
            if wrong and not issues:
                continue
            if issues and len(wrong) < len(issues):
                # With this value more of the rules hold together.
                working[name], draft, issues = value, other, wrong
            drafts_of.setdefault(name, []).append((value, other))
    settings.issues += issues
    for name, drafts in drafts_of.items():
        _note_differences(draft, settings.given[name], drafts)
    for name, setting in _unknown(settings).items():
        _note_named(draft, name, setting)
    _note_undecided(draft)
    return draft


def _unknown(settings: VerlSettings) -> Mapping[str, VerlSetting]:
    """Keys that are not known and of which something would be made."""
    return {
        name: setting
        for name, setting in settings.given.items()
        if setting.unknown and (row := find(name)) is not None and row.fate not in ("dropped", "person")
    }


def _attempt(
    settings: VerlSettings, working: Mapping[str, Any], rules: Callable[[ExperimentDraft], None]
) -> tuple[ExperimentDraft, list[Issue]]:
    before = settings.issues
    settings.issues = []
    draft = ExperimentDraft(settings, working=working)
    try:
        rules(draft)
        return draft, settings.issues
    finally:
        settings.issues = before


def _candidates(setting: VerlSetting, row: VerlKey | None) -> tuple[Any, ...]:
    """Values that the key may have, of its type; at least one."""
    fitting = tuple(value for value in setting.candidates if row is None or row.wrong(value) is None)
    if fitting:
        return fitting
    assert row is not None, setting.name
    first = () if row.default is None else (row.default,)
    if row.kind == "bool":
        return (False, True)
    if row.kind in ("count", "int", "number"):
        return tuple(dict.fromkeys((*first, *_NUMBERS)))
    return first or (f"{setting.name.rpartition('.')[2]}",)


def _note_differences(draft: ExperimentDraft, setting: VerlSetting, drafts: list[tuple[Any, ExperimentDraft]]) -> None:
    paths = dict.fromkeys(path for _, other in drafts for path in other.fields)
    for path in (*draft.fields, *(path for path in paths if path not in draft.fields)):
        values = [other.fields.get(path, (None, ""))[0] for _, other in drafts]
        if any(value != values[0] for value in values):
            _make_gap(draft, path, setting, values if setting.candidates else ())


def _note_named(draft: ExperimentDraft, name: str, setting: VerlSetting) -> None:
    for path in draft.done.get(name, []):
        if path in draft.fields:
            _make_gap(draft, path, setting, ())
    row = find(name)
    if not draft.done.get(name) and row is not None and row.target:
        target = parse(row.target.replace("[i]", "[0]"))
        if target is not None:
            _make_gap(draft, target, setting, setting.candidates if row.fate in ("field", "tree") else ())


def _make_gap(draft: ExperimentDraft, path: FieldPath, setting: VerlSetting, values: Any) -> None:
    before = draft.fields.get(path)
    if before is not None and isinstance(before[0], Gap) and setting.written in before[1]:
        return
    distinct = [value for at, value in enumerate(values) if value not in values[:at] and not isinstance(value, Gap)]
    draft.gap(show(path), setting.name, note=setting.unknown, candidates=distinct)


def _note_undecided(draft: ExperimentDraft) -> None:
    for name, setting in list(draft.settings.given.items()):
        if _is_dumped(draft.settings, name):
            continue
        for undecided in _UNDECIDED:
            if undecided.name.fullmatch(name) and (setting.unknown or undecided.asks(setting.value)):
                draft.gap(undecided.target, name, note=setting.unknown or undecided.note)


def _is_dumped(settings: VerlSettings, name: str) -> bool:
    """True of the column of images in a file that holds veRL's defaults as well: it has one wherever nobody wrote one.

    A command, and a file of a few keys, name it because the rows have it.
    """
    beside = ("data.video_key", "data.prompt_key", "data.return_raw_input_ids", "data.truncation")
    dumped = not settings.program and all(other in settings.given for other in beside)
    return dumped and name == _IMAGES and settings.given[name].value == "images"
