"""The GPUs of an explorer's process: those of the trained model's engine come first, then each auxiliary model's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rftd.streams.spec.auxiliary import AuxiliarySpec
from rftd.streams.spec.spec import ExperimentSpec, StageSpec


class AuxiliaryPlace(NamedTuple):
    """An auxiliary model, the first stage with it, and the numbers of its engines' GPUs within the explorer's."""

    model: AuxiliarySpec
    stage: StageSpec
    gpus: range
    """Empty: it has none for its own."""


def auxiliary_places(stages: Iterable[StageSpec]) -> tuple[AuxiliaryPlace, ...]:
    """The auxiliary models of the stages, each once, for an explorer opens each of them once."""
    exploring = [stage for stage in stages if stage.kind != "train"]
    first = max((stage.rollout.needs.devices for stage in exploring), default=0)
    places: list[AuxiliaryPlace] = []
    for stage in exploring:
        for model in stage.auxiliary:
            if any(model == place.model for place in places):
                continue
            gpus = range(first, first + model.engines * model.needs.devices)
            places.append(AuxiliaryPlace(model, stage, gpus))
            first = gpus.stop
    return tuple(places)


def explorer_devices(stages: Iterable[StageSpec]) -> int:
    """The GPUs that one explorer has for its own, for all of its engines together."""
    exploring = [stage for stage in stages if stage.kind != "train"]
    own = max((stage.rollout.needs.devices for stage in exploring), default=0)
    return own + sum(len(place.gpus) for place in auxiliary_places(exploring))


def accelerators_of(spec: ExperimentSpec) -> int:
    """The GPUs that the workers of an experiment hold together; a worker without one counts as one."""
    exploring = [stage for stage in spec.stages if stage.kind != "train"]
    explorers = max((stage.rollout.explorers for stage in exploring), default=0)
    trainer_devices = max((stage.trainer.devices for stage in spec.stages), default=0)
    return max(1, trainer_devices) + explorers * max(1, explorer_devices(exploring))
