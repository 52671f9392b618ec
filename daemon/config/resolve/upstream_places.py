"""`with_upstream_places`: a stage whose optimizer is also read where veRL has it, below `trainer.trainer_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, WrongValue
from rftd.daemon.config.resolve.verl import CONTENTS, STANDS_FOR, leaves
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import Section, as_section
from rftd.daemon.config.verl.table import find

_OPTIMIZER: Final[FieldPath] = ("algorithm", "optimizer")
_BESIDE: Final[Mapping[FieldPath, FieldPath]] = {("trainer", "grad_clip"): (*_OPTIMIZER, "clip_grad")}
"""Fields that may be written in another place as well."""


def with_upstream_places(experiment: Experiment, notes: Notes) -> Experiment:
    """The experiment with each field that only veRL's tree says; a field that both say otherwise is an issue.

    What the tree has at veRL's own default asks for nothing beside a field that is written.
    """
    taken: dict[FieldPath, tuple[FieldPath, Any]] = {}
    # A default comes last: of two names of one thing the one that says something else counts.
    for where, key, value in sorted(leaves(experiment.trainer), key=lambda leaf: _is_default(leaf[1], leaf[2])):
        field = STANDS_FOR.get(key)
        if field is None or value is None or (reading := _read(experiment, field, where, value, notes)) is None:
            continue
        rival = _written(experiment, field)
        if rival is None and field in taken:
            rival = taken[field]
        if rival is None:
            taken[field] = (where, reading)
        elif rival[1] != reading and not _is_default(key, value):
            what = f"is {value!r}, and {show(rival[0])}, which is the same, is {rival[1]!r}"
            notes.wrong(where, what, "keep one of the two", Contradiction)
    experiment = _with_contents(experiment, notes)
    return _filled(experiment, {field: reading for field, (_, reading) in taken.items()})


def _with_contents(experiment: Experiment, notes: Notes) -> Experiment:
    """The experiment with whole models in its checkpoints if veRL's tree asks for them."""
    trainer = experiment.trainer
    for where, key, value in leaves(trainer):
        if key not in CONTENTS or value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            notes.wrong(where, f"is {value!r}", "write a list of texts", WrongValue)
        elif "hf_model" not in value:
            if not {"model", "optimizer", "extra"} <= set(value):
                notes.warn(f"{show(where)} has no effect: a checkpoint holds all that a restart needs")
        elif "save_hf_checkpoint" not in trainer.model_fields_set:
            trainer = trainer.model_copy(update={"save_hf_checkpoint": "always"})
        elif trainer.save_hf_checkpoint != "always":
            notes.warn(f"{show(where)} has no effect: trainer.save_hf_checkpoint is {trainer.save_hf_checkpoint}")
    return experiment.model_copy(update={"trainer": trainer})


def _read(experiment: Experiment, field: FieldPath, where: FieldPath, value: Any, notes: Notes) -> Any:
    """The value as the field holds it; None if veRL's tree may not hold it, which is said."""
    name = str(field[-1])
    if name == "lr_warmup_steps" and value in (0, -1):
        return -1  # veRL takes the ratio then
    try:
        return getattr(type(_section(experiment, field)).model_validate({name: value}), name)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        notes.wrong(where, f"is {value!r}, and stands for {show(field)}: {reason}", f"write {show(field)}", WrongValue)
        return None


def _is_default(key: FieldPath, value: Any) -> bool:
    row = find(".".join(map(str, key)))
    return row is not None and row.default == value


def _written(experiment: Experiment, field: FieldPath) -> tuple[FieldPath, Any] | None:
    """The place that says the field in words of this file, with its value."""
    for place in (field, _BESIDE.get(field, field)):
        section = _section(experiment, place)
        name = str(place[-1])
        if name in section.model_fields_set:
            return place, getattr(section, name)
    return None


def _section(experiment: Experiment, field: FieldPath) -> Section:
    return experiment.trainer if field[0] == "trainer" else as_section(experiment.algorithm.optimizer)


def _filled(experiment: Experiment, values: Mapping[FieldPath, Any]) -> Experiment:
    """The experiment with these fields, as if they had been written."""
    optimizer = {str(field[-1]): value for field, value in values.items() if field[0] == "algorithm"}
    trainer = {str(field[-1]): value for field, value in values.items() if field[0] == "trainer"}
    if optimizer:
        whole = as_section(experiment.algorithm.optimizer).model_copy(update=optimizer)
        algorithm = experiment.algorithm.model_copy(update={"optimizer": whole})
        experiment = experiment.model_copy(update={"algorithm": algorithm})
    if trainer:
        experiment = experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update=trainer)})
    return experiment
