"""The milestones of an experiment, as lines of the daemon's log: started, paused, evaluated, ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops.logs import Logger
from rftd.streams.events import experiment as life
from rftd.streams.events.experiment import CheckpointChosen, SignalLost, StageStopped
from rftd.streams.events.registry import Event
from rftd.streams.events.step import EvalCompleted
from rftd.streams.folds.signal import SOLVED

_LINES: Final[dict[type[Event], tuple[str, tuple[str, ...]]]] = {
    life.ExperimentStarted: ("experiment.started", ()),
    life.StageStarted: ("stage.started", ("stage", "name", "first_version")),
    life.StageCompleted: ("stage.completed", ("stage", "last_version")),
    life.ExperimentPaused: ("experiment.paused", ("cause", "reason")),
    life.ExperimentReleased: ("experiment.released", ()),
    life.ExperimentResumed: ("experiment.resumed", ("reason",)),
    life.ExperimentPrioritized: ("experiment.prioritized", ("priority", "reason")),
    life.ExperimentCancelled: ("experiment.cancelled", ("reason",)),
    life.ExperimentCompleted: ("experiment.completed", ()),
    life.ExperimentFailed: ("experiment.failed", ("code", "role", "reason")),
    EvalCompleted: ("eval.completed", ("version", "taskset", "rows", "score")),
    CheckpointChosen: ("checkpoint.chosen", ("stage", "version", "figure", "value", "before")),
    StageStopped: ("stage.stopped", ("stage", "version", "cause", "reason")),
    SignalLost: ("signal.lost", ("stage", "step", "cause", "reason", "fix")),
}
"""Name of the log line for each milestone event, and the event's fields written there."""
_WARNED_EVENTS: Final = frozenset({life.ExperimentPaused, life.ExperimentFailed, SignalLost})
"""Milestones logged as warnings."""


def tell(log: Logger, experiment: UUID, events: Iterable[Event]) -> None:
    """Writes one log line for each milestone (such as started, paused, evaluated, ended) among appended events."""
    for event in events:
        milestone = _LINES.get(type(event))
        if milestone is None:
            continue
        name, fields = milestone
        fields_by_name = msgspec.structs.asdict(event)
        line = log.warning if type(event) in _WARNED_EVENTS else log.info
        if isinstance(event, SignalLost) and event.cause == SOLVED:
            # One event type serves every cause; in the daemon's log, an end must not look like a fault.
            name = "signal.solved"
            line = log.info
        line(name, experiment=str(experiment), **{field: fields_by_name[field] for field in fields})
