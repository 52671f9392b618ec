"""Halves: an experiment with explorers and trainer from two submissions.

Each half fixes the fields of its own role; shared fields must agree. The source of each field of the joined
specification is decided here alone, so that every reader of the log joins halves alike.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from rftd.streams.events.experiment import FolderMove
from rftd.streams.spec.engines import WorkerMemory
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, StageSpec

Place: TypeAlias = tuple[str, ...]
"""Path of a key in a file or of a field in a specification, from the root."""
_StructT = TypeVar("_StructT", bound=msgspec.Struct)
"""Type of a part of a specification."""
_BUFFER: Final[Place] = ("buffer", "trainer_input", "experience_buffer")
"""The key of the experience buffer, shared by both halves."""


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """Keys of the experiment file whose values both halves must share, with the stage's fields derived from them."""

    keys: tuple[Place, ...]
    """Keys of the file."""
    fields: tuple[Place, ...]
    """Fields of a stage's specification."""
    of_tasks: bool = False
    """True if the half with the tasks decides fields set in neither file."""
    of_machine: bool = False
    """True if the machine decides fields set in neither file: the explorers', or that of a trainer already running."""

    def first_decides(self, explores: bool, *, settled: bool) -> bool:
        """True if the half submitted first decides fields set in neither file.

        `explores` is True if that is the explore half; `settled` is True if steps were trained already.
        """
        if self.of_machine:
            return explores or settled
        return self.of_tasks and explores

    def second_decides(self) -> bool:
        """True if, after the first half declined (`first_decides`), the half submitted second decides fields set in
        neither file.
        """
        return self.of_tasks or self.of_machine

    def said_in(self, config: Mapping[str, Any], stage: int) -> dict[Place, Any]:
        """Returns the group's values set in a file for the stage, by key path; a stage's own value overrides the global
        one.
        """
        leaves = dict(_leaves(config, self.keys))
        leaves |= _leaves(_stage(config, stage), self.keys)
        return leaves


GROUPS: Final = (
    SharedGroup(
        keys=(
            *(("synchronizer",), ("policy",), ("explorer", "max_inflight_batches")),
            *(("algorithm", "sample_strategy"), ("algorithm", "sample_strategy_args")),
            *((*_BUFFER, "replay_buffer"), (*_BUFFER, "max_read_timeout"), (*_BUFFER, "capacity")),
        ),
        fields=(
            *(("synchronizer",), ("policy",), ("max_read_timeout_s",)),
            *(("algorithm", "sample_strategy"), ("algorithm", "sample_strategy_args")),
        ),
        of_tasks=True,
    ),
    SharedGroup(
        keys=(("algorithm", "advantage_fn"), ("algorithm", "advantage_fn_args")),
        fields=(("algorithm", "advantage"), ("algorithm", "advantage_args")),
    ),
    SharedGroup(keys=(("buffer", "train_batch_size"),), fields=(("train_batch_size",),), of_tasks=True),
    SharedGroup(keys=(("explorer", "rollout_model", "dtype"),), fields=(("rollout", "dtype"),), of_machine=True),
)
"""Groups of fields that explorers, planner and trainer use alike."""
_KEYS: Final = tuple(key for group in GROUPS for key in group.keys)
"""All keys whose values the halves must share."""


def filled(config: Mapping[str, Any], other_config: Mapping[str, Any], *more: Place) -> dict[str, Any]:
    """Returns a copy of the file `config`, with shared keys (and those in `more`) that it leaves unset taken from
    `other_config`.
    """
    merged: dict[str, Any] = copy.deepcopy(dict(config))
    _fill(merged, other_config, (*_KEYS, *more), merged)
    stages = merged.get("stages")
    other_stages = other_config.get("stages")
    if isinstance(stages, list) and isinstance(other_stages, list) and len(stages) == len(other_stages):
        for stage, other_stage in zip(stages, other_stages, strict=True):
            _fill(stage, other_stage, (*_KEYS, *more), merged)
    return merged


def taken_from(source: StageSpec, stage: StageSpec, group: SharedGroup) -> StageSpec:
    """Returns `stage` with the group's fields from `source`."""
    for field in group.fields:
        stage = _replaced(stage, source, field)
    return stage


def _replaced(target: _StructT, source: Any, field: Place) -> _StructT:
    """Returns `target` with one of its fields, at any depth, taken from `source`."""
    head, *inner_path = field
    replacement = getattr(source, head)
    if inner_path:
        replacement = _replaced(getattr(target, head), replacement, tuple(inner_path))
    return msgspec.structs.replace(target, **{head: replacement})


def _fill(target: dict[str, Any], source: Mapping[str, Any], keys: tuple[Place, ...], whole: Mapping[str, Any]) -> None:
    """Adds to `target` the values of `source` at or below `keys` that neither `target` nor `whole` states."""
    for key_path, leaf in _leaves(source, keys):
        if _holds(target, key_path) or _holds(whole, key_path):
            continue
        section = target
        for name in key_path[:-1]:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                break
        else:
            section[key_path[-1]] = copy.deepcopy(leaf)


def _leaves(config: Mapping[str, Any], keys: tuple[Place, ...]) -> Iterator[tuple[Place, Any]]:
    """Yields the values below the keys; a list is one value, and null counts as missing."""
    for key in keys:
        node: Any = config
        for name in key:
            node = node.get(name) if isinstance(node, Mapping) else None
        yield from _values_below(node, key)


def _values_below(node: Any, path: Place) -> Iterator[tuple[Place, Any]]:
    """Yields path and value of every leaf below a node of the file; leaves without a value are skipped."""
    if isinstance(node, Mapping):
        for name, child in node.items():
            yield from _values_below(child, (*path, name))
    elif node is not None:
        yield path, node


def _holds(config: Mapping[str, Any], path: Place) -> bool:
    """True if the file has a value at the path, or a value instead of a section above it."""
    node: Any = config
    for name in path:
        if not isinstance(node, Mapping):
            return node is not None
        node = node.get(name)
    return node is not None


def _stage(config: Mapping[str, Any], stage: int) -> Mapping[str, Any]:
    """Returns one stage's section of an experiment file; empty if there is none."""
    stages = config.get("stages")
    if not isinstance(stages, list) or stage >= len(stages) or not isinstance(stages[stage], Mapping):
        return {}
    stage_config: Mapping[str, Any] = stages[stage]
    return stage_config


EXPLORE: Final = "explore"
"""Mode of the half with the explorers."""
TRAIN: Final = "train"
"""Mode of the half with the trainer."""
BOTH: Final = frozenset((EXPLORE, TRAIN))
"""The modes of both halves."""
EXPLORER: Final = "explorer"
"""The role of explorers."""
TRAINER: Final = "trainer"
"""The role of the trainer."""
HALF_BY_ROLE: Final = {EXPLORER: EXPLORE, TRAINER: TRAIN}
"""Half of the experiment in which each role of a worker works."""
ROLES: Final = frozenset(HALF_BY_ROLE)
"""The roles fixed by halves."""
_INDEPENDENT_FIELDS: Final = frozenset(
    ("half", "config", "warnings", "labels", "priority", "memory", "log_level", "limits")
)
"""Fields that may differ between the submissions."""
_EXPLORE_FILE_KEYS: Final = ("mode", "priority", "labels", "limits")
"""Keys of a joined file taken only from the former submission: mode, and keys of `_INDEPENDENT_FIELDS`."""
_EXPLORE_STAGE_FIELDS: Final = (
    *("taskset", "more_tasksets", "evals", "eval_interval", "eval_on_startup", "eval_at_end"),
    *("batch_size", "rollout", "auxiliary"),
)
"""Fields of a stage fixed by the explore half for a train half without tasks."""
_TRAINER_ALGORITHM_FIELDS: Final = (
    *("optimizer", "policy_loss", "policy_loss_args", "kl_penalty", "kl_penalty_args", "kl_penalty_place"),
    *("kl_loss", "kl_loss_args", "entropy_loss", "entropy_loss_args", "loss_agg_mode", "loss_scale_factor"),
    "correction",
)
"""Fields of the algorithm read by the trainer alone; `advantage` is also read by the planner, to find uninformative
groups.
"""
_EXPLORE_KEYS: Final = frozenset(
    (
        *(("explorer",), ("buffer", "explorer_input"), ("buffer", "batch_size")),
        *(("model", name) for name in ("temperature", "top_p", "top_k", "repetition_penalty")),
    )
)
"""Keys of the file, or of one of its stages, fixed by the half with the explorers."""
_TRAIN_KEYS: Final = frozenset(
    (
        ("trainer",),
        *(("algorithm", name) for name in ("optimizer", "loss_agg_mode", "rollout_correction")),
        *(
            ("algorithm", f"{part}_fn{suffix}")
            for part in ("policy_loss", "kl_penalty", "kl_loss", "entropy_loss")
            for suffix in ("", "_args")
        ),
    )
)
"""Keys of the file, or of one of its stages, fixed by the half with the trainer."""


def halves_of(spec: ExperimentSpec) -> frozenset[str]:
    """Returns the halves in a submission of this specification."""
    return BOTH if spec.half == "both" else frozenset((spec.half,))


class LateHalf(msgspec.Struct, frozen=True, kw_only=True):
    """The half submitted after the first one was imported, with its file and the later moves of folders."""

    config: dict[str, Any]
    """The half's own file."""
    moves: tuple[tuple[FolderMove, ...], ...]
    """The folders moved by each import since then."""


class Disagreement(NamedTuple):
    """A field with different values in the two halves."""

    field: str
    """Path of the field."""
    one: object
    """Value in the first half."""
    other: object
    """Value in the second half."""


def has_tasks(spec: ExperimentSpec) -> bool:
    """False for a train half without tasks, which can run only after the explore half is submitted."""
    return all(stage.taskset is not None for stage in spec.stages if stage.kind == "both")


def joined(former: ExperimentSpec, half: ExperimentSpec, *, trained: bool = False) -> ExperimentSpec | Disagreement:
    """Joins `former` and a second submission into one specification, or returns the first field in disagreement. Pure.

    With `trained`, the trainer's fields are fixed by the steps taken: a later half must have equal values.
    """
    if {former.half, half.half} != BOTH:
        return difference(former, half) or former
    original = former
    former, half = _agreed(former, half, settled=trained)
    explore, train = (former, half) if former.half == EXPLORE else (half, former)
    explores = explore
    trains = train
    if len(explore.stages) == len(train.stages):
        pairs = list(zip(explore.stages, train.stages, strict=True))
        # Fields trained with under the train half stay, whatever the other half would have chosen.
        settled = trained and former.half == EXPLORE
        explored = tuple(
            _trained_by(explore_stage, train_stage, settled=settled) for explore_stage, train_stage in pairs
        )
        explores = msgspec.structs.replace(explore, stages=explored)
        trains = msgspec.structs.replace(
            train, stages=tuple(_explored_by(train_stage, explore_stage) for explore_stage, train_stage in pairs)
        )
    # In the order of submission, as a reader of the disagreement submitted the second.
    if (disagreement := difference(*((explores, trains) if former is explore else (trains, explores)))) is not None:
        return disagreement
    merged = filled(filled(_merged(explore.config, train.config), explore.config), train.config)
    reach = explore.reach.joined(train.reach)
    memory = (*_rows_of(TRAINER, train), *_rows_of(EXPLORER, explore))
    config = _own(merged, original.config)
    return msgspec.structs.replace(original, stages=trains.stages, config=config, reach=reach, memory=memory)


def _rows_of(role: str, spec: ExperimentSpec) -> tuple[WorkerMemory, ...]:
    """Returns the expected memory of a half's own workers, on the machine of its check."""
    return tuple(row for row in spec.memory if row.role == role)


def _agreed(former: ExperimentSpec, half: ExperimentSpec, *, settled: bool) -> tuple[ExperimentSpec, ExperimentSpec]:
    """Returns both submissions with equal shared fields, group by group: from the submission setting more of the keys,
    or, with equal keys, from the deciding one (`SharedGroup.first_decides`). A group with contradictory keys stays as
    it is.
    """
    if len(former.stages) != len(half.stages):
        return former, half
    former_stages: list[StageSpec] = []
    half_stages: list[StageSpec] = []
    for stage_index, (former_stage, half_stage) in enumerate(zip(former.stages, half.stages, strict=True)):
        for group in GROUPS:
            former_keys = group.said_in(former.config, stage_index)
            half_keys = group.said_in(half.config, stage_index)
            former_decides = group.first_decides(former.half == EXPLORE, settled=settled)
            if half_keys.items() <= former_keys.items() and (half_keys != former_keys or former_decides):
                half_stage = taken_from(former_stage, half_stage, group)
            elif (
                former_keys.items() <= half_keys.items()
                and not settled
                and (half_keys != former_keys or group.second_decides())
            ):
                former_stage = taken_from(half_stage, former_stage, group)
        former_stages.append(former_stage)
        half_stages.append(half_stage)
    return (
        msgspec.structs.replace(former, stages=tuple(former_stages)),
        msgspec.structs.replace(half, stages=tuple(half_stages)),
    )


def _own(merged: dict[str, Any], former_config: dict[str, Any]) -> dict[str, Any]:
    """Returns the merged file with the mode and the other free keys of the former submission."""
    own_config = {
        key: setting for key, setting in merged.items() if key in former_config or key not in _EXPLORE_FILE_KEYS
    }
    own_config |= {key: former_config[key] for key in _EXPLORE_FILE_KEYS if key in former_config}
    stages, former_stages = merged.get("stages"), former_config.get("stages")
    if isinstance(stages, list) and isinstance(former_stages, list) and len(stages) == len(former_stages):
        own_config["stages"] = [
            _own(stage_config, former_stage) for stage_config, former_stage in zip(stages, former_stages, strict=True)
        ]
    return own_config


def _trained_by(stage: StageSpec, train: StageSpec, *, settled: bool) -> StageSpec:
    """Returns the explore half's stage with the fields fixed by the train half; unchanged if `settled`, with steps
    trained already.
    """
    if settled:
        return stage
    training_fields = {name: getattr(train.algorithm, name) for name in _TRAINER_ALGORITHM_FIELDS}
    algorithm: AlgorithmSpec = msgspec.structs.replace(stage.algorithm, **training_fields)
    return msgspec.structs.replace(stage, trainer=train.trainer, algorithm=algorithm)


def _explored_by(stage: StageSpec, explore: StageSpec) -> StageSpec:
    """Returns the train half's stage with the fields fixed by the explore half."""
    if stage.kind != "both":
        return stage
    # The trainer compares the explorers' dtype with its own.
    rollout = msgspec.structs.replace(explore.rollout, dtype=stage.rollout.dtype)
    if stage.taskset is None:
        fixed = {name: getattr(explore, name) for name in _EXPLORE_STAGE_FIELDS}
        return msgspec.structs.replace(stage, **(fixed | {"rollout": rollout}))
    return msgspec.structs.replace(stage, rollout=rollout, auxiliary=explore.auxiliary)


def _merged(explore: Any, train: Any, path: tuple[str, ...] = ()) -> Any:
    """Merges both halves' files into a file that resolves to the joined specification."""
    if isinstance(explore, dict) and isinstance(train, dict):
        merged: dict[str, Any] = {}
        for key in dict.fromkeys((*explore, *train)):
            below = (*path, key)
            # A key fixed by a single half and missing there has the default, whatever the other half wrote.
            sides = [
                side[key]
                for side, foreign in ((train, _EXPLORE_KEYS), (explore, _TRAIN_KEYS))
                if key in side and below not in foreign
            ]
            if sides:
                merged[key] = _merged(explore[key], train[key], below) if len(sides) > 1 else sides[0]
        return merged
    if path == ("stages",) and isinstance(explore, list) and isinstance(train, list) and len(explore) == len(train):
        return [_merged(explore_stage, train_stage) for explore_stage, train_stage in zip(explore, train, strict=True)]
    return train


def difference(first: ExperimentSpec, second: ExperimentSpec) -> Disagreement | None:
    """Returns the first field that keeps two specifications from being halves of one experiment; None if
    there is none.
    """
    # Each half has the reach granted to its own names; the whole has both.
    names = (name for name in ExperimentSpec.__struct_fields__ if name not in (*_INDEPENDENT_FIELDS, "reach"))
    return next(
        (
            disagreement
            for name in names
            if (disagreement := _differing(name, getattr(first, name), getattr(second, name)))
        ),
        None,
    )


def _differing(field: str, first: object, second: object) -> Disagreement | None:
    """Returns the innermost differing field of `field`."""
    if first == second:
        return None
    pairs: list[tuple[str, object, object]] = []
    if isinstance(first, msgspec.Struct) and type(first) is type(second):
        pairs = [(f"{field}.{name}", getattr(first, name), getattr(second, name)) for name in first.__struct_fields__]
    elif isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        pairs = [(f"{field}[{index}]", *elements) for index, elements in enumerate(zip(first, second, strict=True))]
    inner = (_differing(*pair) for pair in pairs)
    return next((disagreement for disagreement in inner if disagreement), Disagreement(field, first, second))
