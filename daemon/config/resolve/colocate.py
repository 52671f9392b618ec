"""`mode: colocate`: one device, on which explorer and trainer take turns."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.experiment import Experiment
from rftd.ops.processors import ALL
from rftd.streams.spec import RolloutSpec, SyncSpec, TrainerSpec

_TURNS: Final = {
    "sync_method": "memory",
    "sync_style": "fixed",
    "sync_interval": 1,
    "explorer_sync_interval": None,
    "trainer_sync_interval": None,
    "sync_offset": 0,
}
"""Each explore step runs on the weights of the step before it, and waits for them."""


def in_turns(experiment: Experiment, notes: Notes) -> Experiment:
    """The experiment as one device runs it: its schedule, its channel, and all threads for whose turn it is."""
    given = experiment.synchronizer
    for name, value in _TURNS.items():
        if name in given.model_fields_set and (asked := getattr(given, name)) not in (value, None):
            notes.warn(f"mode colocate: synchronizer.{name} {asked} becomes {value}: explorer and trainer take turns")
    model = experiment.explorer.rollout_model
    if model.engine_num != 1:
        what = f"is {model.engine_num}, and mode colocate has one device"
        notes.wrong(("explorer", "rollout_model", "engine_num"), what, "write engine_num: 1, or mode: both")
    slots = (experiment.cluster.node_num or 0) * (experiment.cluster.gpu_per_node or 0)
    if slots > 1:
        what = f"{slots} slots, and mode colocate is for one device"
        notes.wrong(("cluster", "gpu_per_node"), what, "write mode: both, or a cluster of 1 x 1")
    return experiment.model_copy(update={"synchronizer": given.model_copy(update=_TURNS)})


def with_turns(
    experiment: Experiment, sync: SyncSpec, rollout: RolloutSpec, trainer: TrainerSpec
) -> tuple[SyncSpec, RolloutSpec, TrainerSpec]:
    """The stage's parts, taking turns. A deterministic one keeps its threads: the weights' bits depend on them."""
    sync = msgspec.structs.replace(sync, turns=True)
    if experiment.deterministic:
        return sync, rollout, trainer
    if "threads" not in experiment.explorer.rollout_model.extra_engine_args:
        rollout = msgspec.structs.replace(rollout, threads=ALL)
    if "threads" not in experiment.trainer.engine_args:
        trainer = msgspec.structs.replace(trainer, threads=ALL)
    return sync, rollout, trainer
