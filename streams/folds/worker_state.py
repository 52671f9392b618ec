"""`WorkerState`: the work of a worker, or its wait: the one list for heartbeats, `rftd why`, metrics and rules."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class WorkerState(StrEnum):
    """A worker's state, as reported by its heartbeat."""

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
"""States of a worker able to work, and waiting for another role to provide work."""
OTHER: Final = "other"
"""The label of an unknown state, at a daemon older than its workers."""
_STATES: Final = frozenset(state.value for state in WorkerState)


def label_of_state(state: str) -> str:
    """Returns a heartbeat's state as a label of metrics: one of the list, or `other`."""
    return state if state in _STATES else OTHER
