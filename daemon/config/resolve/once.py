"""Settings that hold for every stage: an explorer and the trainer open their engine once.

A later stage that asks for another value is refused; it would train or generate with the first one's, silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.resolve.engines import ROLLOUT_ARGS, TRAINER_ARGS
from rftd.daemon.config.resolve.notes import Notes
from rftd.streams.spec import StageSpec
from rftd.workers.rollout.engines import registry as rollout_engines
from rftd.workers.training.engines import registry as trainer_engines

_ROLLOUT: Final[Mapping[str, FieldPath]] = {
    "engine": ("explorer", "rollout_model", "engine_type"),
    "dtype": ("explorer", "rollout_model", "dtype"),
    "threads": (*ROLLOUT_ARGS, "threads"),
}


def check_against_first(stage: StageSpec, before: Sequence[StageSpec], notes: Notes) -> None:
    """Refuses settings of `stage` that an earlier stage has decided otherwise."""
    if before:
        first = before[0]
        if stage.trainer.engine != first.trainer.engine:
            _refuse(("trainer", "trainer_type"), stage.trainer.engine, first.trainer.engine, first, notes)
        names = trainer_engines.opened_with(first.trainer.engine)
        kind = trainer_engines.arguments_of(first.trainer.engine)
        _compare(stage.trainer.engine_args, first.trainer.engine_args, kind, names, TRAINER_ARGS, first, notes)
    if stage.kind == "train":
        return
    exploring = next((each for each in before if each.kind != "train"), None)
    if exploring is None:
        return
    for name, path in _ROLLOUT.items():
        mine = getattr(stage.rollout, name)
        theirs = getattr(exploring.rollout, name)
        if mine != theirs:
            _refuse(path, mine, theirs, exploring, notes)
    kind = rollout_engines.arguments_of(exploring.rollout.engine)
    names = kind.__struct_fields__ if kind is not None else ()
    _compare(stage.rollout.engine_args, exploring.rollout.engine_args, kind, names, ROLLOUT_ARGS, exploring, notes)


def _compare(
    mine: Mapping[str, Any],
    theirs: Mapping[str, Any],
    kind: type[msgspec.Struct] | None,
    names: Sequence[str],
    path: FieldPath,
    first: StageSpec,
    notes: Notes,
) -> None:
    """Compares arguments by name; one that is not given has its default."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)} if kind is not None else {}
    for name in names:
        default = defaults.get(name)
        if mine.get(name, default) != theirs.get(name, default):
            _refuse((*path, name), mine.get(name, default), theirs.get(name, default), first, notes)


def _refuse(path: FieldPath, mine: Any, theirs: Any, first: StageSpec, notes: Notes) -> None:
    what = f"is {mine!r} here and {theirs!r} in stage {first.name!r}, and the engine is opened once for all stages"
    notes.wrong(path, what, "write it in the global section alone, or submit the stages one after another")
