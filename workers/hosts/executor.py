"""`Executor`: the interface of launchers, which start and watch worker processes."""

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
"""Exit code of a worker that ended before joining because its node or machine lacks a requirement."""
UNKNOWN_EXIT: Final = -256
"""Exit code of a worker that ended with unknown status: outside of 0 to 255 (exit statuses) and of -1 to -64 (-N stands
for signal N).
"""
NO_WORKER: Final = UUID(int=0)
"""The worker id in an order that has not been started yet."""


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order for a worker process: identity, resources, environment, log file."""

    worker: UUID = NO_WORKER
    """The id under which the worker joins, new for each start: its only identity in the log and in the launcher."""
    experiment: UUID
    """Id of the experiment."""
    role: str
    """`explorer` or `trainer`."""
    slot: int
    """The number of the slot; -1 for a trainer."""
    threads: int
    """Number of threads for computing, or `ALL`."""
    log_path: Path
    """The file to which the worker's output is appended."""
    devices: int = 0
    """GPUs reserved for the worker; 0: none are assigned, and it sees all devices of the machine."""
    nodes: int = 1
    """Number of machines for its processes, with an equal share of the GPUs on each."""
    start_timeout_s: float = 0.0
    """Maximum seconds between the start of the process and `worker.started`; 0: the default of all workers."""
    cluster: ClusterSpec = ClusterSpec()
    """The experiment's settings for the cluster, for launchers with one."""
    log_level: str = "INFO"
    """Minimum level of logged lines."""
    paths: tuple[str, ...] = ()
    """Folders that must exist where the worker runs, besides the job's."""
    environment: tuple[str, ...] = ()
    """Names of the daemon's variables needed by the worker's specification and role; no other secret is passed."""
    spine_offset: int = 0
    """An offset in the spine at or before the experiment's submission, from which the worker reads."""


class Handle(Protocol):
    """An ordered or adopted worker in one of three states: pending (no pid, no exit code), running (pid), ended (exit
    code).

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
        """Why the worker ended or could not start, where the exit code does not tell; else empty."""
        ...

    def exit_code(self) -> int | None:
        """Returns the exit code: None while pending or running, -N after signal N, `UNKNOWN_EXIT` after an end with
        unknown status.
        """
        ...

    def terminate(self) -> None:
        """Asks the worker to finish running rollouts and exit; a pending worker never starts. Idempotent."""
        ...

    def kill(self) -> None:
        """Kills the worker at once; its child processes are ended once the launcher notices the end. Idempotent."""
        ...


class Executor(Protocol):
    """A launcher of worker processes. A slot is the place of one worker at a time: an experiment, a role and a slot
    number.
    """

    def start(self, order: WorkerOrder) -> Handle:
        """Orders a new worker and returns its handle; the process starts once all processes of the slot's previous
        workers have ended. Never blocks.
        """
        ...

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        """Returns the handle of a worker started by an earlier daemon and announced by `started`; None if its process
        has certainly ended. Never blocks.

        A launcher unable to tell at once returns a handle, which later reports the end if there is no worker.
        """
        ...

    def lives(self, started: WorkerStarted) -> bool | None:
        """True if the worker's process runs, False if it has ended; None if its machine is out of reach from here.
        Never blocks.
        """
        ...

    def host(self) -> Host:
        """Returns the devices available to workers. The first call blocks until the devices' driver or the cluster
        answers.
        """
        ...

    def clear(self, order: WorkerOrder) -> Handle | None:
        """Begins to end all remaining processes of a slot's earlier workers; the returned handle reports the end of the
        last. None: nothing to end.

        To be called only after the workers themselves have ended.
        """
        ...


class Search(Protocol):
    """A search for workers ordered by an earlier daemon that have not joined yet, for example because their engine is
    still opening.
    """

    @property
    def over(self) -> bool:
        """True once the search is complete, whether or not workers were found."""
        ...

    @property
    def waits(self) -> Words | None:
        """The obstacle to an incomplete search; None without an obstacle."""
        ...

    def worker(self, order: WorkerOrder) -> UUID | None:
        """Returns the id of the worker found in the order's slot, whether or not it has joined; None during the search,
        and if none or several were found.
        """
        ...

    def adopt(self, order: WorkerOrder) -> Handle | None:
        """Returns the handle of the worker that was found and has the order's id; None if its process has certainly
        ended. Never blocks.
        """
        ...


@runtime_checkable
class OpeningExecutor(Protocol):
    """A launcher able to find workers that were ordered by an earlier daemon and have not joined yet."""

    def opening(self, orders: Sequence[WorkerOrder]) -> list[Search]:
        """Begins a search for the workers of each order; orders may share a search. Never blocks."""
        ...


@runtime_checkable
class RemoteExecutor(Protocol):
    """A launcher whose workers do not inherit the daemon's environment, so that variables have to be passed."""

    def is_remote(self, role: str) -> bool:
        """True if workers of the role run without the daemon's environment."""
        ...
