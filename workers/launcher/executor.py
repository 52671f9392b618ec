"""`Executor`: starts worker processes somewhere, and watches them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from uuid import UUID

import msgspec

from rftd.streams.events.worker import WorkerStarted
from rftd.workers.devices.host import Host


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is wanted."""

    experiment: UUID
    role: str
    slot: int
    """The number of the slot; -1 for a trainer."""
    threads: int
    log_path: Path
    """The file to which its output is appended."""
    devices: int = 0
    """GPUs that it has for its own; 0: it is given none, and sees what the machine shows."""
    start_timeout_s: float = 0.0
    """The time that it has to join; 0: as long as any worker."""
    spine_offset: int = 0
    """The offset on the spine at which the experiment was submitted, or a lower one."""


class Handle(Protocol):
    """A worker process, ordered or adopted. Nothing here blocks."""

    @property
    def pid(self) -> int | None:
        """The process id; None until the operating system has started it."""
        ...

    @property
    def waits_for(self) -> str:
        """The obstacle to its start, or the reason why it failed; empty if nothing is in its way."""
        ...

    def exit_code(self) -> int | None:
        """The exit code; None while it runs or is being started, -1 if it ended and nobody knows how."""
        ...

    def terminate(self) -> None:
        """Asks it to drain and leave; one that is not started yet never is. Idempotent."""
        ...

    def kill(self) -> None:
        """Ends it at once, with what it started. Idempotent."""
        ...


class Executor(Protocol):
    """A launcher of worker processes. A place is an experiment, a role and a slot: one worker is in it at a time."""

    def start(self, order: WorkerOrder) -> Handle:
        """A new worker process, begun once nothing is left of those before it in its place. Never blocks."""
        ...

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        """The process of a worker that an earlier daemon started in that place, if it still lives; else None."""
        ...

    def lives(self, started: WorkerStarted) -> bool:
        """True if the process of that worker, which is one of this machine, has not ended."""
        ...

    def host(self) -> Host:
        """What it can give to workers. Blocks the first time, while the driver of the devices answers."""
        ...

    def clear(self, order: WorkerOrder) -> Handle | None:
        """Ends what the workers of a place left behind: the handle has ended once nothing is left. None: there is none.

        To be asked for when the workers themselves have ended.
        """
        ...
