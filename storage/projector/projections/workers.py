"""Workers, from `rftd.workers`; dead letters reported by consumers, from `rftd.deadletters`."""

from __future__ import annotations

from typing import Final

from rftd.storage.database.tables.progress import DeadLetters
from rftd.storage.database.tables.workers import Workers
from rftd.storage.projector.projections.projection import Projection, id_of
from rftd.storage.projector.upserts import Changes, Upsert
from rftd.streams.events import worker
from rftd.streams.log.envelope import Decoded

PROJECTOR: Final = "projector"
"""Consumer name of the projector's own dead letters; reports of others under this name are ignored."""

STARTED: Final = Upsert(
    Workers,
    prefix="started",
    owns=("experiment", "role", "slot", "host", "pid", "process_start_s", "capacity"),
)
"""Upsert of the columns owned by `worker.started`."""
STOPPED: Final = Upsert(Workers, prefix="stopped", owns=("stopped_code", "stopped_reason", "stopped_memory_bytes"))
"""Upsert of the columns owned by `worker.stopped`."""
LOST: Final = Upsert(Workers, prefix="lost", owns=("lost_reason", "lost_memory_bytes"))
"""Upsert of the columns owned by `worker.lost`."""
DEAD_LETTER: Final = Upsert(DeadLetters, prefix="reported", owns=("code", "reason"))
"""Upsert of the columns of a dead letter."""


def _put_started(event: worker.WorkerStarted, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of a worker."""
    changes.put(
        STARTED,
        decoded,
        id=event.worker.bytes,
        experiment=id_of(decoded.head.experiment),
        role=event.role,
        slot=event.slot,
        host=event.host,
        pid=event.pid,
        process_start_s=event.process_start_s,
        capacity=event.capacity,
    )


def _put_stopped(event: worker.WorkerStopped, decoded: Decoded, changes: Changes) -> None:
    """Records a worker's end."""
    changes.put(
        STOPPED,
        decoded,
        id=event.worker.bytes,
        stopped_code=event.code,
        stopped_reason=event.reason,
        stopped_memory_bytes=event.memory_peak_bytes,
    )


def _put_lost(event: worker.WorkerLost, decoded: Decoded, changes: Changes) -> None:
    """Records that a worker was lost."""
    changes.put(
        LOST,
        decoded,
        id=event.worker.bytes,
        lost_reason=event.reason,
        lost_memory_bytes=event.memory_bytes,
    )


def _put_dead_letter(event: worker.RecordDeadLettered, decoded: Decoded, changes: Changes) -> None:
    # The projector's own letters are folded from the records themselves: an event under the projector's name would add
    # a second row.
    """Adds the row of an unusable record reported by a consumer other than the projector."""
    if event.consumer == PROJECTOR:
        return
    changes.put(
        DEAD_LETTER,
        decoded,
        consumer=event.consumer,
        stream=event.stream,
        partition=event.partition,
        offset=event.offset,
        code=event.code,
        reason=event.reason,
    )


PROJECTION: Final = Projection(
    name="workers",
    version=1,
    tables=(Workers, DeadLetters),
    handlers={
        worker.WorkerStarted: _put_started,
        worker.WorkerStopped: _put_stopped,
        worker.WorkerLost: _put_lost,
        worker.RecordDeadLettered: _put_dead_letter,
    },
)
"""Projection of workers, and of dead letters reported by other consumers."""
