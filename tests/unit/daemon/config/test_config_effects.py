"""Every field of the schema acts, is refused, or is harmless and says so; nothing is read and silently dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin

import msgspec
import pytest
from synthetic.daemon.config_fields import SchemaField, schema_fields, with_field
from synthetic.daemon.third_party import install

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import ConfigErrors, Contradiction, Unsupported
from rftd.daemon.config.loading import check_config
from rftd.streams.spec.declaration import ACTS
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.host import Device, Host

_GPUS: Final = Host(
    name="node",
    devices=tuple(Device(kind="cuda", index=each, name="G", memory_bytes=8 * 10**10) for each in range(8)),
    packages={"vllm": "0.31", "verl": "0.9", "flash-attn": "2", "ray": "2"},
    clustered=True,
)
_TASKS: Final = {
    **{"path": "/t.jsonl", "default_workflow_type": "simple_workflow"},
    "default_reward_fn_type": "math_reward",
}
_ROWS: Final = {"experience_buffer": {"path": "/rows.jsonl"}}
_MIXED: Final = {"auxiliary_buffers": {"sft_dataset": {"path": "/rows.jsonl"}}}
_KTO: Final = {"train_batch_size": 4, "trainer_input": _ROWS}
_SERVICE: Final = {"enable": True, "model_name": "m"}
_TORCHS: Final = {"engine_type": "torch", "model_path": "/aux", "name": "aux"}
_SERVED: Final = {"engine_type": "external", "model_name": "m", "base_url": "http://a/v1"}
_BASE: Final[dict[str, Any]] = {
    "checkpoint_root_dir": "/c",
    "algorithm": {"algorithm_type": "grpo", "repeat_times": 4},
    "model": {"model_path": "/m", "max_model_len": 64},
    "buffer": {"batch_size": 2, "total_steps": 6, "explorer_input": {"taskset": _TASKS, "eval_tasksets": [_TASKS]}},
    "explorer": {"auxiliary_models": [{"model_path": "/aux", "name": "aux"}]},
    "synchronizer": {"sync_method": "checkpoint", "sync_style": "fully_async"},
}
_NO_GPU: Final = Host(name="laptop", no_gpu="nvidia-smi not found", packages={"tinker": "0.38"})
_CRITERIA: Final = {"rollout_is": "token", "rollout_rs": "token_k1", "rollout_rs_threshold": 2.0}
_BOXED: Final = {"default_workflow_type": "math_boxed_workflow", "default_reward_fn_type": "math_boxed_reward"}
_SELECTOR: Final = ("selector_type", "feature_keys", "kwargs")
_BY_DIFFICULTY: Final = {"data_selector": {"selector_type": "difficulty_based", "feature_keys": ["weak", "strong"]}}
_BY_DEFAULT: Final = {
    **{"taskset": None, "tasksets": [{"path": "/t.jsonl"}], "eval_tasksets": [{"path": "/t.jsonl"}]},
    **{"default_workflow_type": "simple_workflow", "default_reward_fn_type": "math_reward"},
}
_WAITING: Final = {
    "over_rollout": {"ratio": 0.5},
    "concurrent_mode": "asynchronous",
    "dynamic_timeout": {"enable": True},
    "straggler_reissue": {"enable": True},
    "rollout_model": {"engine_num": 2},
}
_OWN_ALGORITHM: Final = {"algorithm_type": "dapo"}
_SOURCE: Final = {"default_reward_fn_type": "mine.py:f"}
_JUICED: Final = {"name": "llm_difficulty_score_filter"}
_REMOTE: Final = {"server_url": "http://juicer:5005"}
_LENGTHS: Final = {"name": "text_length_filter", "args": {"min_len": 3}}
_SIEVE: Final = {"name": "reward_filter", "args": {"threshold": 0.1}}
_OVER: Final[tuple[tuple[dict[str, Any], Host], ...]] = (
    ({}, _NO_GPU),
    ({"explorer": _WAITING, "synchronizer": {"sync_style": "trainer_driven", "sync_interval": 4}}, _NO_GPU),
    (
        {
            "buffer": {"trainer_input": {"experience_buffer": {"replay_buffer": {"enable": True}}}},
            "policy": {"kind": "hard_bound", "max_staleness": 4},
        },
        _NO_GPU,
    ),
    ({"algorithm": {"algorithm_type": "ppo"}, "buffer": {"total_steps": None, "total_epochs": 2}}, _NO_GPU),
    ({"synchronizer": {"sync_style": "fixed", "sync_interval": 2, "sync_offset": 1, "sync_method": "memory"}}, _NO_GPU),
    ({"buffer": {"explorer_input": {"taskset": _BOXED, "eval_tasksets": [_TASKS | _BOXED]}}}, _NO_GPU),
    ({"buffer": {"explorer_input": {"taskset": None, "tasksets": [_TASKS | _BOXED]}}}, _NO_GPU),
    ({"buffer": {"explorer_input": _BY_DEFAULT}}, _NO_GPU),
    ({"algorithm": {"algorithm_type": "mix"}, "buffer": {"train_batch_size": 16, "trainer_input": _MIXED}}, _NO_GPU),
    ({"mode": "train", "algorithm": {"algorithm_type": "kto"}, "buffer": _KTO}, _NO_GPU),
    ({"algorithm": {"rollout_correction": _CRITERIA, "kl_penalty_fn": "k1"}}, _NO_GPU),
    ({"algorithm": {"sample_strategy": "staleness_control", "entropy_loss_fn": "default"}}, _NO_GPU),
    ({"model": {"lora_configs": [{"name": "a"}]}}, _NO_GPU),
    ({"model": {"tinker": {"enable": True}}, "algorithm": {"kl_loss_fn": "none"}}, _NO_GPU),
    ({"mode": "bench", "model": {"external_model": _SERVICE, "max_response_tokens": 8}}, _NO_GPU),
    ({"mode": "serve"}, _NO_GPU),
    ({"explorer": {"rollout_model": {"engine_type": "vllm"}}, "cluster": {"node_num": 1, "gpu_per_node": 8}}, _GPUS),
    ({"trainer": {"trainer_type": "verl"}, "cluster": {"node_num": 1, "gpu_per_node": 4}}, _GPUS),
    ({"explorer": {"auxiliary_models": [_SERVED]}}, _NO_GPU),
    ({"buffer": {"explorer_input": {"taskset": _BY_DIFFICULTY}}}, _NO_GPU),
    ({"buffer": {"explorer_input": {"taskset": None, "tasksets": [_TASKS | _BY_DIFFICULTY]}}}, _NO_GPU),
    ({"explorer": {"auxiliary_models": [_TORCHS]}, "trainer": {"trainer_type": "verl"}}, _GPUS),
    ({"monitor": {"monitor_type": "wandb", "samples": 4}}, _NO_GPU),
    ({"trainer": {"early_stop": {"patience": 1}, "rules": [{"below": 0.1}]}}, _NO_GPU),
    ({"data_processor": {"experience_pipeline": {"operators": [_SIEVE]}}}, _NO_GPU),
    (
        {"data_processor": {"task_pipeline": {"operators": [_LENGTHS], "inputs": ["/x.jsonl"], "top_k": 3}}},
        _NO_GPU,
    ),
    ({"data_processor": {"task_pipeline": {"operators": [_JUICED]}}, "service": {"data_juicer": _REMOTE}}, _NO_GPU),
    (
        {
            "data_processor": {"task_pipeline": {"operators": [_JUICED]}},
            "service": {"data_juicer": {"auto_start": True}},
        },
        _NO_GPU,
    ),
    ({"limits": {"cost": 9.0, "million_tokens_price": 2.0}}, _NO_GPU),
    ({"buffer": {"explorer_input": {"taskset": _OWN_ALGORITHM}}}, _NO_GPU),
    ({"buffer": {"explorer_input": {"taskset": None, "tasksets": [_TASKS | _OWN_ALGORITHM]}}}, _NO_GPU),
    ({"sources": {"mine.py": "def f(truth): return 1"}, "buffer": {"explorer_input": {"taskset": _SOURCE}}}, _NO_GPU),
)
"""Experiments in one of which each field acts: what is laid over `_BASE`, and the machine."""
_EVERY_MODE: Final = (0, 1, 2, 4, 8, 9, 13, 14, 15, 17)
"""Places in it of one experiment for each mode, style and engine: there, whatever does nothing says so."""
_AUXILIARY: Final = "buffer.trainer_input.auxiliary_buffers.NAME"
_ACT_ELSEWHERE: Final = [
    "buffer.explorer_input.taskset.storage_type",  # of a taskset without `path`
    "buffer.explorer_input.taskset.repeat_times",  # of held-out tasksets
    "buffer.explorer_input.tasksets[0].storage_type",
    "buffer.explorer_input.tasksets[0].repeat_times",
    "buffer.explorer_input.eval_tasksets[0].storage_type",
    *(f"buffer.explorer_input.eval_tasksets[0].data_selector.{name}" for name in _SELECTOR),  # rows in order
    "buffer.explorer_input.eval_tasksets[0].algorithm_type",  # of tasksets to train on
    "buffer.explorer_input.eval_tasksets[0].advantage_fn_args",
    f"{_AUXILIARY}.capacity",  # of `experience_buffer`
    f"{_AUXILIARY}.max_read_timeout",
    *(f"{_AUXILIARY}.replay_buffer.{name}" for name in ("enable", "priority_fn", "reuse_cooldown_time")),
    f"{_AUXILIARY}.replay_buffer.priority_fn_args",
    f"{_AUXILIARY}.schema_type",
    "trainer.trainer_config_path",  # the client reads it
]
_VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "monitor_args": ({"base_url": "http://x"},),
    "advantage_fn": ("rloo",),
    "advantage_fn_args": ({"epsilon": 0.5},),
    "algorithm_type": ("rloo",),
    "args": ({"a": 1}, {"threshold": 0.5}),
    "base_url": ("http://b/v1",),
    "betas": ([0.5, 0.9],),
    "capacity": (64,),
    "corrections": ([{"kind": "tis"}],),
    "default_eval_workflow_type": ("math_workflow",),
    "default_reward_fn_type": ("format_reward",),
    "default_workflow_type": ("math_workflow",),
    "engine_args": ({"device": "cpu"},),
    "engine_type": ("fake",),
    "entropy_loss_fn": ("none", "default"),
    "entropy_loss_fn_args": ({"entropy_coef": 0.5},),
    "sources": ({"mine.py": "def f(response): return 2"},),
    "env_vars": ({"TOKEN": {"env": "TOKEN"}},),
    "extra_engine_args": ({"device": "cpu"},),
    "kl_loss_fn": ("k1",),
    "kl_loss_fn_args": ({"kl_coef": 0.5},),
    "kl_penalty_fn": ("k1", "k2"),
    "kl_penalty_fn_args": ({"kl_coef": 0.5},),
    "kwargs": ({"tau": 0.5},),
    "feature_keys": (["strong", "weak"],),
    "selector_type": ("shuffle",),
    "metric": ("accuracy",),
    "name": ("x", "others"),
    "policy": ({"kind": "in_order"},),
    "policy_loss_fn": ("gspo",),
    "trainer_config": ({"critic": {"ppo_epochs": 3}}, {"actor_rollout_ref": {"actor": {"ppo_epochs": 3}}}),
    "policy_loss_fn_args": ({"clip_range": 0.5},),
    "made": ({"settings": "x", "inputs": [], "operators": [], "rows": 1},),
    "inputs": (["/y.jsonl"], {"1": "x"}),
    "priority_fn": ("tag",),
    "priority_weights": ({"difficulty": 0.5},),
    "priority_fn_args": ({"decay": 0.5},),
    "reasoning_parser": ("deepseek_r1",),
    "reward_fn_args": ({"with_think": True},),
    "rollout_is_threshold": (3.0,),
    "rollout_rs_threshold": (3.0,),
    "rollout_rs": ("seq_sum_k3",),
    "sample_strategy": ("staleness_control", "default"),
    "sample_strategy_args": ({"max_staleness": 9},),
    "sync_method": ("memory", "checkpoint"),
    "tool_call_parser": ("hermes",),
    "trainer_type": ("fake",),
    "workflow_args": ({"with_think": True},),
}
"""Values of fields that take names or arguments: others are made of the field's type."""


def _laid(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _laid(below.get(key), value) for key, value in above.items()}}
    return above


class _Outcome(msgspec.Struct, frozen=True):
    """What came of a file."""

    spec: ExperimentSpec | None
    warnings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Fields that contradict others, or that cannot act; none whose value has the wrong type."""


def _outcome(tree: dict[str, Any], host: Host) -> _Outcome:
    try:
        spec = check_config(tree, host=host)
    except ConfigErrors as errors:
        found = (each for each in errors.errors if isinstance(each, Contradiction | Unsupported))
        return _Outcome(None, (), tuple(each.field or "" for each in found))
    return _Outcome(msgspec.structs.replace(spec, config={}, warnings=()), spec.warnings)


def _speaks(path: FieldPath, outcome: _Outcome) -> bool:
    """True if a warning says of this very field, or of a section around it, that it has no effect."""
    around = [show(path[:length]) for length in range(1, len(path) + 1)]
    return any(text.startswith(f"{place} has no effect") for text in outcome.warnings for place in around)


def _differs(path: FieldPath, was: _Outcome, now: _Outcome) -> bool:
    """True if the field changed what runs, is refused at its place, or is named in a new warning by its whole path."""
    if now.spec is not None and now.spec != was.spec:
        return True
    spoken = set(now.warnings) - set(was.warnings)
    said = any(show(path) in text.replace(",", " ").replace(":", " ").split() for text in spoken)
    return said or show(path) in now.refused or _speaks(path, now)


def _values(field: SchemaField) -> tuple[Any, ...]:
    return _VALUES.get(field.name) or tuple(_of_type(field.info.annotation))


def _of_type(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Literal:
        yield from get_args(annotation)
    elif origin is list:
        yield from ([value] for value in _of_type(get_args(annotation)[0]))
    elif origin is dict:
        yield from ({"1": value} for value in _of_type(get_args(annotation)[1]))
    elif annotation in _EXAMPLES:
        yield from _EXAMPLES[annotation]
    else:
        for part in get_args(annotation):
            yield from _of_type(part)


_EXAMPLES: Final[Mapping[Any, tuple[Any, ...]]] = {
    bool: (True, False),
    int: (2, 3, 1, 0, 9),
    float: (0.5, 3.0, 1.5, 0.25),
    str: ("/x.jsonl", "x", "127.0.0.2"),
    Any: ("/x.jsonl", "http://x", ["x"], {"env": "A"}),
}


def _required(field: SchemaField) -> dict[str, Any]:
    """The fields that must stand beside this one."""
    names = (name for name, info in field.section.model_fields.items() if info.is_required())
    return {name: "theirs" if name == "name" else 1.0 for name in names}


_Bases: TypeAlias = Sequence[tuple[dict[str, Any], Host, _Outcome]]


@pytest.fixture(scope="module")
def bases() -> _Bases:
    """The experiments, each with what comes of it."""
    trees = [(_laid(_BASE, over), host) for over, host in _OVER]
    return [(tree, host, _outcome(tree, host)) for tree, host in trees]


def _in_each(field: SchemaField, bases: _Bases) -> Iterator[tuple[_Outcome, Iterator[_Outcome]]]:
    """What came of each experiment before, and with each value of the field that it has not got."""
    path = _path(field)
    for tree, host, was in bases:
        if field.kind:
            tree = with_field(tree, path[:-1], {**_required(field), "kind": field.kind})
            was = _outcome(tree, host)
        changed = [with_field(tree, path, value) for value in _values(field)]
        yield was, map(partial(_outcome, host=host), [each for each in changed if each != tree])


def _path(field: SchemaField) -> FieldPath:
    return tuple("sft_dataset" if part == "NAME" else part for part in field.path)


_SHARES: Final = 4
"""The fields are tried in so many tests: one alone takes minutes on a busy machine."""


@pytest.mark.slow
@pytest.mark.parametrize("share", range(_SHARES))
def test_every_field_acts_and_none_is_silent(
    share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bases: _Bases
) -> None:
    """Each field changes what runs in some experiment; in every other one it is refused, or named with the reason.

    The fields are the schema's, and so are the marks: nothing is listed here but places of a section that acts
    elsewhere.
    """
    parts = {
        group: dict.fromkeys(("theirs", "others"), "their_parts:PART")
        for group in ("rftd.policies", "rftd.corrections", "rftd.operators", "rftd.task_operators")
    }
    install(tmp_path, "their_parts", None, parts)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [over for (over, _), (_, _, base) in zip(_OVER, bases, strict=True) if base.spec is None] == []
    acting = [field for field in schema_fields() if field.mark == ACTS or field.mark.effect == "checked"]
    fields = acting[share::_SHARES]
    assert len(fields) > 100
    idle = []
    silent = []
    for field in fields:
        acts = field.mark != ACTS
        for number, (base, outcomes) in enumerate(_in_each(field, bases)):
            if acts and (number not in _EVERY_MODE or field.kind):
                continue
            differs = False
            for outcome in outcomes:
                acts = acts or (outcome.spec is not None and outcome.spec != base.spec)
                differs = differs or outcome.spec is None or _differs(_path(field), base, outcome)
                if acts and differs:
                    break
            if not (differs or field.kind):
                silent.append((show(field.path), _OVER[number][0]))
        if not acts:
            idle.append(show(field.path))
    names = {show(field.path) for field in fields}
    assert silent == []
    assert idle == [name for name in _ACT_ELSEWHERE if name in names]
    assert {show(field.path) for field in acting}.issuperset(_ACT_ELSEWHERE)


def test_a_field_that_is_checked_changes_nothing_and_is_spoken_of(bases: _Bases) -> None:
    for field in schema_fields():
        if field.mark.effect != "checked":
            continue
        found = [(was, now) for was, outcomes in _in_each(field, bases[:14]) for now in outcomes]
        assert all(now.spec in (None, was.spec) for was, now in found), show(field.path)
        assert any(_differs(_path(field), was, now) for was, now in found), show(field.path)


def test_marks_do_what_they_say() -> None:
    """A harmless field that is set is a warning which names it; a refused one is an error at its place."""
    for field in schema_fields():
        if field.mark.effect in ("acts", "checked"):
            continue
        path = tuple("sft_dataset" if part == "NAME" else part for part in field.path)
        default = field.info.get_default(call_default_factory=True)
        tree = _laid(_BASE, {"buffer": {"trainer_input": _MIXED}})
        for name, value in _required(field).items():
            tree = with_field(tree, (*path[:-1], name), value)
        if "tasksets" in path:
            tree = with_field(with_field(tree, ("buffer", "explorer_input", "taskset"), None), path[:4], _TASKS)
        around = [show(path[:length]) for length in range(1, len(path) + 1)]
        done = [_outcome(with_field(tree, path, value), _NO_GPU) for value in _values(field) if value != default]
        if field.mark.effect == "refused":
            assert any(name in each.refused for each in done for name in around), show(path)
        else:
            texts = [text for each in done for text in each.warnings]
            assert any(text.startswith(f"{name} has no effect") for text in texts for name in around), show(path)
