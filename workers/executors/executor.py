"""`Executor`: starts worker processes somewhere, and watches them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from uuid import UUID

import msgspec

from rftd.streams.events.worker import WorkerStarted


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is wanted."""

    experiment: UUID
    role: str
    slot: int
    """-1 for a trainer."""
    threads: int
    log_path: Path
    """Where its standard error goes."""
    spine_offset: int = 0
    """Where on the spine the experiment was submitted, or less."""


class Handle(Protocol):
    """One worker process, started or adopted."""

    @property
    def pid(self) -> int: ...

    def exit_code(self) -> int | None:
        """None while it runs; -1 if it ended and nobody knows how. Never blocks."""
        ...

    def terminate(self) -> None:
        """Asks it to drain and leave. Idempotent."""
        ...

    def kill(self) -> None:
        """Ends it at once. Idempotent."""
        ...


class Executor(Protocol):
    """Where worker processes run."""

    async def start(self, order: WorkerOrder) -> Handle:
        """A new worker process. Raises WorkError if it cannot be started."""
        ...

    def adopt(self, started: WorkerStarted) -> Handle | None:
        """The process of a worker that an earlier daemon started, if it still lives; else None."""
        ...
