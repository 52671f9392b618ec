"""`Executor`: starts worker processes somewhere, and watches them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from rftd.ops.words import Words
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.spec.engine_needs import ClusterSpec
from rftd.workers.devices.host import Host

UNFIT_PLACE: Final = 78
"""The exit code of a worker that never joined: the place that it was given lacks what it needs."""
NO_WORKER: Final = UUID(int=0)
"""The id in an order that nobody has started yet."""


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that is wanted."""

    worker: UUID = NO_WORKER
    """The id under which it joins, new for each start: by it, and by nothing else, the log and the launcher know it."""
    experiment: UUID
    role: str
    slot: int
    """The number of the slot; -1 for a trainer."""
    threads: int
    log_path: Path
    """The file to which its output is appended."""
    devices: int = 0
    """GPUs that it has for its own; 0: it is given none, and sees what the machine shows."""
    nodes: int = 1
    """The machines over which its processes are spread, with as many GPUs on each."""
    start_timeout_s: float = 0.0
    """The time that it has to join; 0: as long as any worker."""
    cluster: ClusterSpec = ClusterSpec()
    """The wishes of its experiment for the cluster, if the launcher has one."""
    log_level: str = "INFO"
    """The lowest level of the lines that it logs."""
    paths: tuple[str, ...] = ()
    """Folders that must be where it runs, beside the job's."""
    environment: tuple[str, ...] = ()
    """Names of the daemon's variables that its specification and its role need; it is given no other secret."""
    spine_offset: int = 0
    """The offset on the spine at which the experiment was submitted, or a lower one."""


class Handle(Protocol):
    """A worker that was ordered or adopted: pending without a pid, running with one, ended with an exit code.

    Nothing here blocks.
    """

    @property
    def pid(self) -> int | None:
        """The process id on the machine where it runs; None until it runs."""
        ...

    @property
    def waits(self) -> Words | None:
        """The obstacle to its start, while it is pending; None if nothing is in its way."""
        ...

    @property
    def reason(self) -> str:
        """The reason why it ended, or never began, where that is not told by the exit code; else empty."""
        ...

    def exit_code(self) -> int | None:
        """The exit code; None while it is pending or runs, -1 if it ended and nobody knows how."""
        ...

    def terminate(self) -> None:
        """Asks it to drain and leave; one that is not started yet never is. Idempotent."""
        ...

    def kill(self) -> None:
        """Ends it at once, and what it started when its end is noticed. Idempotent."""
        ...


class Executor(Protocol):
    """A launcher of worker processes. A place is an experiment, a role and a slot: one worker is in it at a time."""

    def start(self, order: WorkerOrder) -> Handle:
        """A new worker, begun once nothing is left of those before it in its place. Never blocks."""
        ...

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        """The worker that an earlier daemon started in that place, if it may still live; else None. Never blocks.

        A launcher that cannot tell at once gives a handle, which ends if nothing is there.
        """
        ...

    def lives(self, started: WorkerStarted) -> bool | None:
        """True if that worker's process has not ended; None if it cannot be seen from here. Never blocks."""
        ...

    def host(self) -> Host:
        """The devices that it can give to workers. Blocks the first time, while the driver of the devices answers."""
        ...

    def clear(self, order: WorkerOrder) -> Handle | None:
        """Ends what the workers of a place left behind: the handle has ended once nothing is left. None: there is none.

        To be asked for when the workers themselves have ended.
        """
        ...


class Search(Protocol):
    """A look for workers that an earlier daemon ordered and that have not joined: they open an engine."""

    @property
    def over(self) -> bool:
        """True once it is known who is there."""
        ...

    @property
    def waits(self) -> Words | None:
        """The obstacle to the look, while it is not over; None if nothing is in its way."""
        ...

    def worker(self, order: WorkerOrder) -> UUID | None:
        """The one worker in the place of an order, joined or not; None while the look lasts, of none and of several."""
        ...

    def adopt(self, order: WorkerOrder) -> Handle | None:
        """The worker that was found, whose id is in the order, if it may still live; else None. Never blocks."""
        ...


@runtime_checkable
class OpeningExecutor(Protocol):
    """A launcher that finds workers which an earlier daemon ordered and which have not joined."""

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        """A search for each order; orders may share one. Never blocks."""
        ...


@runtime_checkable
class RemoteExecutor(Protocol):
    """A launcher of workers whose environment is not the daemon's: it may lack what the daemon has, and get it."""

    def is_remote(self, role: str) -> bool:
        """True if that holds of the workers of a role."""
        ...
