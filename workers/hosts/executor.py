"""`Executor`: starts and watches worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from rftd.ops.words import Words
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.spec.engines import ClusterSpec
from rftd.workers.devices.host import Host

UNFIT_PLACE: Final = 78
"""Exit code of a worker that never joined because its node or machine lacks a requirement."""
UNKNOWN_EXIT: Final = -256
"""Exit code of a worker that ended with unknown status: outside of 0 to 255 (exit statuses) and of -1 to -64 (-N: killed
by signal N)."""
NO_WORKER: Final = UUID(int=0)
"""The worker id in an order that has not been started yet."""


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order for a worker process: identity, resources, environment, log file."""

    worker: UUID = NO_WORKER
    """The id under which the worker joins, new for each start, and its only identity in the log and in the launcher."""
    experiment: UUID
    role: str
    slot: int
    """The number of the slot; -1 for a trainer."""
    threads: int
    log_path: Path
    """The file to which the worker's output is appended."""
    devices: int = 0
    """GPUs reserved for the worker; 0: none are assigned, and it sees all devices of the machine."""
    nodes: int = 1
    """Number of machines for its processes, with an equal share of the GPUs on each."""
    start_timeout_s: float = 0.0
    """Maximum seconds until it joins; 0: the default of all workers."""
    cluster: ClusterSpec = ClusterSpec()
    """The experiment's settings for the cluster, for launchers with one."""
    log_level: str = "INFO"
    """Minimum level of logged lines."""
    paths: tuple[str, ...] = ()
    """Folders that must exist where the worker runs, besides the job's."""
    environment: tuple[str, ...] = ()
    """Names of the daemon's variables needed by its specification and its role; it gets no other secret."""
    spine_offset: int = 0
    """The offset of the experiment's submission on the spine, or a lower one."""


class Handle(Protocol):
    """An ordered or adopted worker: pending without a pid, running with a pid, ended with an exit code.

    No method blocks.
    """

    @property
    def pid(self) -> int | None:
        """The process id on the worker's machine; None before the start."""
        ...

    @property
    def waits(self) -> Words | None:
        """The obstacle to the start of a pending worker; None without an obstacle."""
        ...

    @property
    def reason(self) -> str:
        """The reason of the end, or of a failed start, if the exit code does not tell; else empty."""
        ...

    def exit_code(self) -> int | None:
        """Returns the exit code; None while pending or running, `UNKNOWN_EXIT` after an end with unknown status."""
        ...

    def terminate(self) -> None:
        """Asks the worker to drain and leave; a pending worker never starts. Idempotent."""
        ...

    def kill(self) -> None:
        """Ends the worker at once, and the child processes once that end is noticed. Idempotent."""
        ...


class Executor(Protocol):
    """A launcher of worker processes. A slot here is an experiment, a role and a slot number, with a single worker at a
    time.
    """

    def start(self, order: WorkerOrder) -> Handle:
        """Returns the handle of a new worker, started once the slot's previous workers and all leftovers have ended.
        Never blocks.
        """
        ...

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        """Returns the worker started in the slot by an earlier daemon, if possibly still alive; else None. Never
        blocks.

        A launcher unable to tell at once returns a handle, which ends if there is no worker.
        """
        ...

    def lives(self, started: WorkerStarted) -> bool | None:
        """True if the worker's process has not ended; None if invisible from here. Never blocks."""
        ...

    def host(self) -> Host:
        """Returns the devices available to workers. The first call blocks until the devices' driver answers."""
        ...

    def clear(self, order: WorkerOrder) -> Handle | None:
        """Ends the leftovers of a slot's workers: the handle has ended once none remain. None: there are none.

        To be called only after the workers themselves have ended.
        """
        ...


class Search(Protocol):
    """A search for workers ordered by an earlier daemon and still opening an engine, before their join."""

    @property
    def over(self) -> bool:
        """True once the search is complete, with or without workers found."""
        ...

    @property
    def waits(self) -> Words | None:
        """The obstacle to an incomplete search; None without an obstacle."""
        ...

    def worker(self, order: WorkerOrder) -> UUID | None:
        """Returns the only worker in an order's slot, joined or not; None during the search, for none and for more."""
        ...

    def adopt(self, order: WorkerOrder) -> Handle | None:
        """Returns the worker found by the search, with the id in the order, if possibly still alive; else None. Never
        blocks.
        """
        ...


@runtime_checkable
class OpeningExecutor(Protocol):
    """A launcher able to find workers ordered by an earlier daemon before their join."""

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        """Returns a search for each order; orders may share a search. Never blocks."""
        ...


@runtime_checkable
class RemoteExecutor(Protocol):
    """A launcher of workers outside of the daemon's environment, so that variables may have to be passed."""

    def is_remote(self, role: str) -> bool:
        """True if the workers of a role run in another environment."""
        ...
