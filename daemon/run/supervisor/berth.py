"""`Berth`: one wanted worker of a fleet, and its process."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.folds.roster import Gone
from rftd.workers.hosts.executor import NO_WORKER, Handle, Search, WorkerOrder


class Berth(msgspec.Struct, kw_only=True):
    """One wanted worker of a fleet, with the state of its process."""

    order: WorkerOrder
    handle: Handle | None = None
    search: Search | None = None
    """Search for a living worker of an earlier daemon; no worker is started during the search."""
    restarts: int = 0
    """Number of consecutive restarts without progress."""
    start_at_s: float = 0.0
    progress: int = -1
    """The experiment's progress at the end of the previous process, or at the first start."""
    seen_s: float = 0.0
    """Monotonic time of the process's start, or of its last sighting as a member of the experiment."""
    begun: bool = False
    """True once the operating system has started the handle's process."""
    joined: bool = False
    last: UUID = NO_WORKER
    """The worker ended last, for the reason in `last_why`."""
    last_why: str = ""
    refused: Gone | None = None
    """The leaving announcement of a worker refusing the work, for which an immediate restart would be in vain."""
