"""`WorkerState`: the work of a worker, or its wait: the one list that heartbeats, `rftd why`, metrics and rules use."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class WorkerState(StrEnum):
    """A worker's state as its heartbeat has it."""

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
"""A worker in one of these could work, and waits for another role to give it something to do."""
OTHER: Final = "other"
"""The label of a state that no worker of this release sends, at a daemon that is older than its workers."""
_SAID: Final = frozenset(state.value for state in WorkerState)


def label_of_state(said: str) -> str:
    """The state of a heartbeat as a label of metrics: one of the list, or `other`."""
    return said if said in _SAID else OTHER
