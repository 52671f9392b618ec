"""Halves: an experiment whose explorers and whose trainer come from two submissions.

Each half fixes the fields of its own role; fields that both use must agree. What the joined specification takes from
which half is said here alone, so that every reader of the log joins them alike.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from rftd.streams.events.experiment import FolderMove
from rftd.streams.spec.engine_needs import WorkerMemory
from rftd.streams.spec.shared_fields import GROUPS, filled, taken_from
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, StageSpec

EXPLORE: Final = "explore"
TRAIN: Final = "train"
BOTH: Final = frozenset((EXPLORE, TRAIN))
EXPLORER: Final = "explorer"
TRAINER: Final = "trainer"
HALF_OF: Final = {EXPLORER: EXPLORE, TRAINER: TRAIN}
"""The half that each role of a worker belongs to."""
ROLES: Final = frozenset(HALF_OF)
_OF_ONE: Final = frozenset(("half", "config", "warnings", "labels", "priority", "memory", "log_level", "limits"))
"""Fields that each submission may fill in its own way."""
_OF_ONE_FILE: Final = ("mode", "priority", "labels", "limits")
"""The same, as keys of the user's file."""
_OF_TASKS: Final = (
    *("taskset", "more_tasksets", "evals", "eval_interval", "eval_on_startup", "eval_at_end"),
    *("batch_size", "rollout", "auxiliary"),
)
"""Fields of a stage that the explore half fixes for a train half without tasks."""
_OF_TRAINING: Final = (
    *("optimizer", "policy_loss", "policy_loss_args", "kl_penalty", "kl_penalty_args", "kl_penalty_place"),
    *("kl_loss", "kl_loss_args", "entropy_loss", "entropy_loss_args", "loss_agg_mode", "loss_scale_factor"),
    "correction",
)
"""Fields of the algorithm that the trainer alone reads; by `advantage` the planner tells, too, what teaches nothing."""
_EXPLORE_KEYS: Final = frozenset(
    (
        *(("explorer",), ("buffer", "explorer_input"), ("buffer", "batch_size")),
        *(("model", name) for name in ("temperature", "top_p", "top_k", "repetition_penalty")),
    )
)
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
"""Sections and keys of the user's file that one half alone fixes; a stage's own are those below it."""


def halves_of(spec: ExperimentSpec) -> frozenset[str]:
    """The halves that a submission of this specification brings."""
    return BOTH if spec.half == "both" else frozenset((spec.half,))


class LateHalf(msgspec.Struct, frozen=True, kw_only=True):
    """The half that was submitted where the first one had been imported to, with folders as they are there."""

    config: dict[str, Any]
    """The half's own file."""
    moves: tuple[tuple[FolderMove, ...], ...]
    """The folders that each import since then moved."""


class Disagreement(NamedTuple):
    """A field of the specification in which two submissions disagree, and its value in each."""

    field: str
    one: object
    other: object


def has_tasks(spec: ExperimentSpec) -> bool:
    """False for a train half that leaves the tasks to the explore half: it can only run once both are there."""
    return all(stage.taskset is not None for stage in spec.stages if stage.kind == "both")


def joined(known: ExperimentSpec, half: ExperimentSpec, *, trained: bool = False) -> ExperimentSpec | Disagreement:
    """The specification that `known` and another submission make, or the first field in which they disagree. Pure.

    Once it is `trained`, the trainer's fields are settled: steps were taken under them, and a half that comes then
    must have the same.
    """
    if {known.half, half.half} != BOTH:
        return difference(known, half) or known
    given = known
    known, half = _agreed(known, half, settled=trained)
    explore, train = (known, half) if known.half == EXPLORE else (half, known)
    explores = explore
    trains = train
    if len(explore.stages) == len(train.stages):
        pairs = list(zip(explore.stages, train.stages, strict=True))
        # What was trained under the train half's own fields stays so, whatever the other one would have chosen.
        settled = trained and known.half == EXPLORE
        explored = tuple(_trained_by(one, other, settled=settled) for one, other in pairs)
        explores = msgspec.structs.replace(explore, stages=explored)
        trains = msgspec.structs.replace(train, stages=tuple(_explored_by(other, one) for one, other in pairs))
    # In the order in which they came, for whoever reads the disagreement was the second.
    if (found := difference(*((explores, trains) if known is explore else (trains, explores)))) is not None:
        return found
    merged = filled(filled(_merged(explore.config, train.config), explore.config), train.config)
    reach = explore.reach.joined(train.reach)
    memory = (*_rows_of(TRAINER, train), *_rows_of(EXPLORER, explore))
    config = _own(merged, given.config)
    return msgspec.structs.replace(given, stages=trains.stages, config=config, reach=reach, memory=memory)


def _rows_of(role: str, spec: ExperimentSpec) -> tuple[WorkerMemory, ...]:
    """The memory that a half's own workers were expected to take, on the machine that it was held against."""
    return tuple(row for row in spec.memory if row.role == role)


def _agreed(known: ExperimentSpec, half: ExperimentSpec, *, settled: bool) -> tuple[ExperimentSpec, ExperimentSpec]:
    """Both submissions with the shared fields of the one that says more of them; where neither does, as they are."""
    if len(known.stages) != len(half.stages):
        return known, half
    ones: list[StageSpec] = []
    others: list[StageSpec] = []
    for place, (one, other) in enumerate(zip(known.stages, half.stages, strict=True)):
        for group in GROUPS:
            said = group.said_in(known.config, place)
            says = group.said_in(half.config, place)
            first = group.first_decides(known.half == EXPLORE, settled=settled)
            if says.items() <= said.items() and (says != said or first):
                other = taken_from(one, other, group)
            elif said.items() <= says.items() and not settled and (says != said or group.second_decides()):
                one = taken_from(other, one, group)
        ones.append(one)
        others.append(other)
    return (
        msgspec.structs.replace(known, stages=tuple(ones)),
        msgspec.structs.replace(half, stages=tuple(others)),
    )


def _own(merged: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The file with the mode and what else is each submission's own as the first one has it."""
    kept = {key: value for key, value in merged.items() if key in known or key not in _OF_ONE_FILE}
    kept |= {key: known[key] for key in _OF_ONE_FILE if key in known}
    stages, of = merged.get("stages"), known.get("stages")
    if isinstance(stages, list) and isinstance(of, list) and len(stages) == len(of):
        kept["stages"] = [_own(each, old) for each, old in zip(stages, of, strict=True)]
    return kept


def _trained_by(stage: StageSpec, train: StageSpec, *, settled: bool) -> StageSpec:
    """The explore half's stage with the fields that the train half fixes."""
    if settled:
        return stage
    own = {name: getattr(train.algorithm, name) for name in _OF_TRAINING}
    algorithm: AlgorithmSpec = msgspec.structs.replace(stage.algorithm, **own)
    return msgspec.structs.replace(stage, trainer=train.trainer, algorithm=algorithm)


def _explored_by(stage: StageSpec, explore: StageSpec) -> StageSpec:
    """The train half's stage with the fields that the explore half fixes."""
    if stage.kind != "both":
        return stage
    # The trainer holds the type of the numbers that explorers compute with against its own.
    rollout = msgspec.structs.replace(explore.rollout, dtype=stage.rollout.dtype)
    if stage.taskset is None:
        fixed = {name: getattr(explore, name) for name in _OF_TASKS}
        return msgspec.structs.replace(stage, **(fixed | {"rollout": rollout}))
    return msgspec.structs.replace(stage, rollout=rollout, auxiliary=explore.auxiliary)


def _merged(explore: Any, train: Any, path: tuple[str, ...] = ()) -> Any:
    """The user's file that resolves to the joined specification, out of what each half wrote."""
    if isinstance(explore, dict) and isinstance(train, dict):
        merged: dict[str, Any] = {}
        for key in dict.fromkeys((*explore, *train)):
            below = (*path, key)
            # A key that one half fixes alone and has left out has its default, whatever the other half wrote.
            of = [
                side[key]
                for side, foreign in ((train, _EXPLORE_KEYS), (explore, _TRAIN_KEYS))
                if key in side and below not in foreign
            ]
            if of:
                merged[key] = _merged(explore[key], train[key], below) if len(of) > 1 else of[0]
        return merged
    if path == ("stages",) and isinstance(explore, list) and isinstance(train, list) and len(explore) == len(train):
        return [_merged(one, other) for one, other in zip(explore, train, strict=True)]
    return train


def difference(one: ExperimentSpec, other: ExperimentSpec) -> Disagreement | None:
    """The first field in which they are not the two halves of one experiment; None if they are. Pure."""
    # Each half has the reach that its own names were granted; the whole has both.
    names = (name for name in ExperimentSpec.__struct_fields__ if name not in (*_OF_ONE, "reach"))
    return next((found for name in names if (found := _below(name, getattr(one, name), getattr(other, name)))), None)


def _below(field: str, one: object, other: object) -> Disagreement | None:
    """The innermost field of `field` that differs."""
    if one == other:
        return None
    pairs: list[tuple[str, object, object]] = []
    if isinstance(one, msgspec.Struct) and type(one) is type(other):
        pairs = [(f"{field}.{name}", getattr(one, name), getattr(other, name)) for name in one.__struct_fields__]
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        pairs = [(f"{field}[{place}]", *both) for place, both in enumerate(zip(one, other, strict=True))]
    inner = (_below(*pair) for pair in pairs)
    return next((found for found in inner if found), Disagreement(field, one, other))
