"""`Berth`: one wanted worker of a fleet, and its process."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.folds.roster import Gone
from rftd.workers.hosts.executor import NO_WORKER, Handle, Search, WorkerOrder


class Berth(msgspec.Struct, kw_only=True):
    """One worker wanted by a fleet, with the state of its process and its restarts."""

    order: WorkerOrder
    """Order for the worker: identity, resources, environment and log file."""
    handle: Handle | None = None
    """The worker's process; None before a start and after an end."""
    search: Search | None = None
    """Search for a process of this worker started by an earlier daemon; no process is started meanwhile. None without
    one.
    """
    restarts: int = 0
    """Number of consecutive restarts without progress."""
    start_at_s: float = 0.0
    """Earliest monotonic time of the next start."""
    progress: int = -1
    """The experiment's progress at the end of the previous process, or at the first start."""
    seen_s: float = 0.0
    """Monotonic time of the process's start, or of its last sighting as a member of the experiment."""
    begun: bool = False
    """True once the operating system has started the handle's process."""
    joined: bool = False
    """True once the log has the current process's worker.started."""
    last: UUID = NO_WORKER
    """Id of the previous worker, which ended for the reason `last_why`."""
    last_why: str = ""
    """Reason for the end of the previous worker; empty before the first end."""
    refused: Gone | None = None
    """Departure of a worker that refused the work (for example because a package is missing): restarts are delayed.
    None without one.
    """
