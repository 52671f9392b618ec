"""GPUs of an explorer process: first those of the trained model's engine, then those of each auxiliary model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.spec import ExperimentSpec, StageSpec


class AuxiliaryPlace(NamedTuple):
    """An auxiliary model with the indices of its engines' GPUs among the explorer's."""

    model: AuxiliarySpec
    stage: StageSpec
    """First stage naming the model."""
    gpus: range
    """Indices among the explorer's GPUs; empty for a model without GPUs of its own."""


def auxiliary_places(stages: Iterable[StageSpec]) -> tuple[AuxiliaryPlace, ...]:
    """Assigns GPUs to the stages' auxiliary models, each model once, because an explorer opens each once."""
    exploring = [stage for stage in stages if stage.kind != "train"]
    first = max((stage.rollout.needs.devices for stage in exploring), default=0)
    assignments: list[AuxiliaryPlace] = []
    for stage in exploring:
        for model in stage.auxiliary:
            if any(model == assignment.model for assignment in assignments):
                continue
            gpus = range(first, first + model.engines * model.needs.devices)
            assignments.append(AuxiliaryPlace(model, stage, gpus))
            first = gpus.stop
    return tuple(assignments)


def explorer_devices(stages: Iterable[StageSpec]) -> int:
    """Returns the number of GPUs assigned to one explorer, for all its engines."""
    exploring = [stage for stage in stages if stage.kind != "train"]
    rollout_gpus = max((stage.rollout.needs.devices for stage in exploring), default=0)
    return rollout_gpus + sum(len(assignment.gpus) for assignment in auxiliary_places(exploring))


def accelerators_of(spec: ExperimentSpec) -> int:
    """Returns the number of GPUs of all workers of an experiment; a worker without one counts as one."""
    exploring = [stage for stage in spec.stages if stage.kind != "train"]
    explorers = max((stage.rollout.explorers for stage in exploring), default=0)
    trainer_devices = max((stage.trainer.devices for stage in spec.stages), default=0)
    return max(1, trainer_devices) + explorers * max(1, explorer_devices(exploring))
