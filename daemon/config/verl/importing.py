"""`import_file`, `import_script` and `import_command` convert veRL's configuration into an experiment file's text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, parse, show
from rftd.daemon.config.issue import Issue, LimitIssue, SyntaxIssue, report
from rftd.daemon.config.loading import read_text
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.daemon.config.verl.config_files import ConfigFiles
from rftd.daemon.config.verl.draft import ExperimentDraft, Gap, ImportLine
from rftd.daemon.config.verl.learning import put_learning
from rftd.daemon.config.verl.pacing import pace_of
from rftd.daemon.config.verl.reward_plugin import VerlReward, verl_reward
from rftd.daemon.config.verl.running import put_running
from rftd.daemon.config.verl.settings import VerlSetting, VerlSettings, command_settings, script_settings, tree_settings
from rftd.daemon.config.verl.shell.reading import read_script
from rftd.daemon.config.verl.shell.script import ShellChoices
from rftd.daemon.config.verl.shell.word import ShellProblem, ShellWord
from rftd.daemon.config.verl.table import TABLES, VerlKey, find
from rftd.daemon.config.yaml_source import parse_yaml

_COMMAND: Final = "<command line>"
"""Name of the source in positions of a command line."""
_SCRIPT_CHARS: Final = 1 << 17
"""Maximum length of a script; veRL's own scripts have a tenth of it."""


@dataclass(frozen=True, slots=True)
class ImportedExperiment:
    """An experiment file made from veRL's configuration, with a report line per key."""

    text: str
    """The experiment file, as YAML."""
    lines: tuple[ImportLine, ...]
    """Report lines, on keys and on texts left out, in the order of the rules."""
    reward: VerlReward | None = None
    """The reward function named by the script, without a counterpart in rftd."""


def import_file(
    path: Path | str,
    words: Sequence[str] = (),
    *,
    sync_offset: int = 0,
    choices: ShellChoices | None = None,
    config_dir: Path | None = None,
) -> ImportedExperiment:
    """Imports the experiment of a shell script, or of a Hydra file (suffix `.yaml`), with overrides merged over.

    Raises ConfigErrors with every error.
    """
    text = read_text(Path(path))
    files = ConfigFiles(Path(path), config_dir)
    if Path(path).suffix in (".yaml", ".yml"):
        return import_tree(text, str(path), words, sync_offset=sync_offset, files=files)
    return import_script(text, str(path), words, sync_offset=sync_offset, choices=choices, files=files)


def import_script(
    text: str,
    origin: str,
    words: Sequence[str] = (),
    *,
    sync_offset: int = 0,
    choices: ShellChoices | None = None,
    files: ConfigFiles | None = None,
) -> ImportedExperiment:
    """Imports the experiment of a shell script without running any of it. Raises ConfigErrors."""
    # Lines are counted as by the shell, also for files written on Windows.
    text = text.replace("\r\n", "\n").replace("\0", " ")
    source = SourceMap(origin, text.split("\n"))
    if len(text) > _SCRIPT_CHARS:
        problem_text = f"longer than {_SCRIPT_CHARS:,} characters"
        raise report([Issue((), problem_text, "pass only the command line, after `--`", LimitIssue)], source)
    try:
        settings = script_settings(read_script(text, source, choices), source, files)
    except ShellProblem as problem:
        raise report([problem.issue], source) from None
    return _import_settings(settings, words, sync_offset)


def import_tree(
    text: str, origin: str, words: Sequence[str] = (), *, sync_offset: int = 0, files: ConfigFiles | None = None
) -> ImportedExperiment:
    """Imports the experiment of a Hydra file (YAML) with overrides merged over it. Raises ConfigErrors."""
    tree, source, issues = parse_yaml(text, origin)
    if not isinstance(tree, dict):
        problem = "the file is empty" if tree is None else "the file must be a mapping of veRL's sections"
        raise report([*issues, Issue((), problem, "is it veRL's?", SyntaxIssue)], source)
    settings = tree_settings(tree, source, files)
    settings.issues[:0] = issues
    return _import_settings(settings, words, sync_offset)


def import_text(
    text: str,
    kind: str,
    *,
    sync_offset: int = 0,
    assumed: Mapping[str, str] | None = None,
    taken: Sequence[int] = (),
    skipped: Sequence[int] = (),
) -> ImportedExperiment:
    """Imports the experiment of a text from elsewhere, a `script` or a `hydra` file, without reading any file for it.

    Raises ConfigErrors.
    """
    files = ConfigFiles(reads=False)
    if kind == "hydra":
        return import_tree(text, "file.yaml", sync_offset=sync_offset, files=files)
    choices = ShellChoices(assumed or {}, tuple(taken), tuple(skipped))
    return import_script(text, "run.sh", sync_offset=sync_offset, choices=choices, files=files)


def import_command(words: Sequence[str], *, sync_offset: int = 0, config_dir: Path | None = None) -> ImportedExperiment:
    """Imports the experiment of a command line already split by a shell. Raises ConfigErrors."""
    settings = command_settings(_given_words(words), SourceMap(_COMMAND), ConfigFiles(folder=config_dir))
    return _import_settings(settings, (), sync_offset)


def _given_words(words: Sequence[str]) -> list[ShellWord]:
    """Returns the words of a command line with their positions."""
    return [ShellWord(word, SourcePlace(f"{_COMMAND}, word {number}")) for number, word in enumerate(words, start=1)]


def _import_settings(settings: VerlSettings, words: Sequence[str], sync_offset: int) -> ImportedExperiment:
    """Applies the rules, then the table row of each remaining key. Raises all issues together."""
    over = command_settings(_given_words(words), settings.source)
    settings.given.update(over.given)
    settings.issues += over.issues
    settings.remarks += over.remarks
    # Resolved last: a reference sees an override at any position.
    settings.resolve()
    if not settings.given and not settings.issues:
        settings.wrong(SourcePlace(settings.source.origin), "", "gives no key", "give key=value", SyntaxIssue)
    if settings.issues:
        raise report(settings.issues, settings.source)

    def rules(draft: ExperimentDraft) -> None:
        pace = pace_of(draft)
        put_learning(draft, pace)
        put_running(draft, pace, sync_offset=sync_offset)

    draft = make_draft(settings, rules)
    draft.finish()
    if settings.issues:
        raise report(settings.issues, settings.source)
    text = draft.text(f"Written by `rftd import-verl` from {settings.source.origin}.")
    return ImportedExperiment(text, tuple(draft.lines), verl_reward(settings))


_MOST_DRAFTS: Final = 48
"""Maximum number of drafts with other candidates for unknown values."""
_IMAGES: Final = "data.image_key"
"""Key of the rows' image column."""
_NUMBERS: Final = (1, 2, 4, 8, 64, 256, 1024)
"""Candidates for an unknown number."""


def make_draft(settings: VerlSettings, rules: Callable[[ExperimentDraft], None]) -> ExperimentDraft:
    """Applies the rules to the settings, and returns the draft with a gap for each field that depends on an unknown
    value.

    An unknown key is set to its candidate values one after another. A field differing between the candidates depends on
    the key, as does every field set by a rule from the key by name. Errors are in `settings.issues`.
    """
    working = {name: _candidates(setting, find(name))[0] for name, setting in _unknown(settings).items()}
    draft, issues = _attempt(settings, working, rules)
    if draft.wanted:
        # An environment variable is resolved at submission, unless further settings depend on it.
        for name, why in draft.wanted.items():
            assert name in settings.given, name
            settings.given[name] = replace(settings.given[name], value=None, unknown=why)
            working[name] = _candidates(settings.given[name], find(name))[0]
        draft, issues = _attempt(settings, working, rules)
    drafts_of: dict[str, list[tuple[Any, ExperimentDraft]]] = {}
    attempts = 0
    for name, setting in _unknown(settings).items():
        for candidate in _candidates(setting, find(name)):
            if attempts >= _MOST_DRAFTS:
                break
            attempts += 1
            variant, wrong = _attempt(settings, {**working, name: candidate}, rules)
            if wrong and not issues:
                continue
            if issues and len(wrong) < len(issues):
                # With this value more of the rules are satisfied together.
                working[name], draft, issues = candidate, variant, wrong
            drafts_of.setdefault(name, []).append((candidate, variant))
    settings.issues += issues
    for name, drafts in drafts_of.items():
        _note_differences(draft, settings.given[name], drafts)
    for name, setting in _unknown(settings).items():
        _note_named(draft, name, setting)
    _note_undecided(draft)
    return draft


def _unknown(settings: VerlSettings) -> Mapping[str, VerlSetting]:
    """Returns keys with unknown values that would be converted."""
    return {
        name: setting
        for name, setting in settings.given.items()
        if setting.unknown and (row := find(name)) is not None and row.fate not in ("dropped", "person")
    }


def _attempt(
    settings: VerlSettings, working: Mapping[str, Any], rules: Callable[[ExperimentDraft], None]
) -> tuple[ExperimentDraft, list[Issue]]:
    """Applies the rules with assumed values for unknown keys; returns the draft and the issues of this attempt."""
    before = settings.issues
    settings.issues = []
    draft = ExperimentDraft(settings, working=working)
    try:
        rules(draft)
        return draft, settings.issues
    finally:
        settings.issues = before


def _candidates(setting: VerlSetting, row: VerlKey | None) -> tuple[Any, ...]:
    """Returns at least one possible value of the key, of the key's type."""
    fitting = tuple(candidate for candidate in setting.candidates if row is None or row.wrong(candidate) is None)
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
    """Makes gaps of fields that differ between the drafts with different candidates of a key."""
    paths = dict.fromkeys(path for _, variant in drafts for path in variant.fields)
    for path in (*draft.fields, *(path for path in paths if path not in draft.fields)):
        leaves = [variant.fields.get(path, (None, ""))[0] for _, variant in drafts]
        if any(leaf != leaves[0] for leaf in leaves):
            _make_gap(draft, path, setting, leaves if setting.candidates else ())


def _note_named(draft: ExperimentDraft, name: str, setting: VerlSetting) -> None:
    """Makes gaps of the fields that rules or the table set from a key with an unknown value."""
    for path in draft.done.get(name, []):
        if path in draft.fields:
            _make_gap(draft, path, setting, ())
    row = find(name)
    if not draft.done.get(name) and row is not None and row.target:
        target = parse(row.target.replace("[i]", "[0]"))
        if target is not None:
            _make_gap(draft, target, setting, setting.candidates if row.fate in ("field", "tree") else ())


def _make_gap(draft: ExperimentDraft, path: FieldPath, setting: VerlSetting, leaves: Any) -> None:
    """Makes a gap of a field because of a key with an unknown value, unless the gap names the key already."""
    before = draft.fields.get(path)
    if before is not None and isinstance(before[0], Gap) and setting.written in before[1]:
        return
    distinct = [leaf for at, leaf in enumerate(leaves) if leaf not in leaves[:at] and not isinstance(leaf, Gap)]
    draft.gap(show(path), setting.name, note=setting.unknown, candidates=distinct)


def _note_undecided(draft: ExperimentDraft) -> None:
    """Makes gaps of fields whose keys need a decision by a person."""
    for name, setting in list(draft.settings.given.items()):
        if _is_dumped(draft.settings, name):
            continue
        for undecided in TABLES.undecided:
            if re.fullmatch(undecided.keys, name) and (setting.unknown or undecided.is_asked(setting.value)):
                draft.gap(undecided.target, name, note=setting.unknown or undecided.note)


def _is_dumped(settings: VerlSettings, name: str) -> bool:
    """True for the image column in a file dumping veRL's defaults as well: such a file always contains the column.

    A command, or a file of a few keys, names the column only because the rows have images.
    """
    beside = ("data.video_key", "data.prompt_key", "data.return_raw_input_ids", "data.truncation")
    dumped = not settings.program and all(key in settings.given for key in beside)
    return dumped and name == _IMAGES and settings.given[name].value == "images"
