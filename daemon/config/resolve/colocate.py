"""`mode: colocate`: one device, on which explorer and trainer take turns."""

from __future__ import annotations

from typing import Final

from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.experiment import Experiment

_TURNS: Final = {
    "sync_method": "memory",
    "sync_style": "fixed",
    "sync_interval": 1,
    "explorer_sync_interval": None,
    "trainer_sync_interval": None,
    "sync_offset": 0,
}
"""Each explore step runs on the weights of the step before it, and waits for them."""

ALL_THREADS: Final = 0


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
