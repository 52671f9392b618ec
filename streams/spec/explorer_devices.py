"""The GPUs of an explorer's process: first the ones of the trained model's engine, then each auxiliary model's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.spec import ExperimentSpec, StageSpec


class AuxiliaryPlace(NamedTuple):
    """An auxiliary model, the first stage naming it, and the numbers of its engines' GPUs within the explorer's."""

    model: AuxiliarySpec
    stage: StageSpec
    gpus: range
    """Empty for a model without exclusive GPUs."""


def auxiliary_places(stages: Iterable[StageSpec]) -> tuple[AuxiliaryPlace, ...]:
    """Assigns GPUs to the auxiliary models of the stages, each once, as an explorer opens each of them once."""
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
    """Returns the number of GPUs exclusive to one explorer, for all of its engines together."""
    exploring = [stage for stage in stages if stage.kind != "train"]
    rollout_gpus = max((stage.rollout.needs.devices for stage in exploring), default=0)
    return rollout_gpus + sum(len(assignment.gpus) for assignment in auxiliary_places(exploring))


def accelerators_of(spec: ExperimentSpec) -> int:
    """Returns the number of GPUs of all workers of an experiment; a worker without one counts as one."""
    exploring = [stage for stage in spec.stages if stage.kind != "train"]
    explorers = max((stage.rollout.explorers for stage in exploring), default=0)
    trainer_devices = max((stage.trainer.devices for stage in spec.stages), default=0)
    return max(1, trainer_devices) + explorers * max(1, explorer_devices(exploring))
