"""`WorkerState`: what a worker is doing or waiting for, the one list for heartbeats, `rftd why`, metrics and rules."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class WorkerState(StrEnum):
    """What a worker is doing or waiting for, as reported in its heartbeats."""

    LOAD = "load"
    """The worker loads its model and its state."""
    OPEN_ENGINE = "open_engine"
    """The worker opens its engine."""
    TAKE_UP = "take_up"
    """The trainer resumes from the newest good checkpoint."""
    ASSEMBLE = "assemble"
    """The trainer reads and assembles a batch."""
    BUSY = "busy"
    """The worker makes rollouts or trains."""
    PUBLISH = "publish"
    """The trainer publishes weights."""
    CHECKPOINT = "checkpoint"
    """The trainer writes a checkpoint."""
    LOAD_WEIGHTS = "load_weights"
    """The explorer loads weights."""
    DRAIN = "drain"
    """The worker finishes its work before leaving."""
    PAUSED = "paused"
    """The experiment is paused."""
    LOAD_FAILED = "load_failed"
    """The explorer could not load weights, and tries again."""
    WAIT_BATCH = "wait_batch"
    """The trainer waits for a planned batch."""
    WAIT_TASKS = "wait_tasks"
    """The explorer waits for leases."""
    WAIT_WEIGHTS = "wait_weights"
    """The explorer waits for its first weights."""
    WAIT_VERSION = "wait_version"
    """Rollouts wait for a weight version."""
    WAIT_TURN = "wait_turn"
    """The worker waits for its turn on a shared device."""
    WAIT_SERVICE = "wait_service"
    """The worker waits for a remote service."""


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
"""States known to this release; any other state is counted as `OTHER`."""


def label_of_state(state: str) -> str:
    """Returns a state from a heartbeat as a metrics label: a known one, or `other`."""
    return state if state in _STATES else OTHER
