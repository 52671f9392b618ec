"""`WorkerState`: what a worker is doing or waiting for, the one list for heartbeats, `rftd why`, metrics and rules."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class WorkerState(StrEnum):
    """What a worker is doing or waiting for, as reported in its heartbeats."""

    LOAD = "load"
    OPEN_ENGINE = "open_engine"
    TAKE_UP = "take_up"
    ASSEMBLE = "assemble"
    BUSY = "busy"
    PUBLISH = "publish"
    CHECKPOINT = "checkpoint"
    LOAD_WEIGHTS = "load_weights"
    DRAIN = "drain"
    PAUSED = "paused"
    LOAD_FAILED = "load_failed"
    WAIT_BATCH = "wait_batch"
    WAIT_TASKS = "wait_tasks"
    WAIT_WEIGHTS = "wait_weights"
    WAIT_VERSION = "wait_version"
    WAIT_TURN = "wait_turn"
    WAIT_SERVICE = "wait_service"


IDLE: Final = (WorkerState.WAIT_BATCH, WorkerState.WAIT_TASKS, WorkerState.WAIT_WEIGHTS, WorkerState.WAIT_VERSION)
"""States of a worker that waits for work from another role."""
UNFINISHED: Final = frozenset(
    (
        WorkerState.TAKE_UP,
        WorkerState.ASSEMBLE,
        WorkerState.BUSY,
        WorkerState.PUBLISH,
        WorkerState.CHECKPOINT,
    )
)
"""States of a trainer with work lost if the trainer left."""
OTHER: Final = "other"
"""Label of a state unknown to this release, reported by a newer worker."""
_STATES: Final = frozenset(state.value for state in WorkerState)


def label_of_state(state: str) -> str:
    """Returns a state from a heartbeat as a metrics label: a known one, or `other`."""
    return state if state in _STATES else OTHER
