"""`Berth`: one wanted worker of a fleet, and the process that fills its place."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.streams.folds.roster import Gone
from rftd.workers.hosts.executor import NO_WORKER, Handle, Search, WorkerOrder


class Berth(msgspec.Struct, kw_only=True):
    """One wanted worker and the process that fills its place."""

    order: WorkerOrder
    handle: Handle | None = None
    search: Search | None = None
    """The look for a worker of an earlier daemon in this place; while it lasts, none is started."""
    restarts: int = 0
    """Restarts in a row, without progress between them."""
    start_at_s: float = 0.0
    progress: int = -1
    """The experiment's progress when the process before ended, or when the first was started."""
    seen_s: float = 0.0
    """The time at which the process was started, or last seen as a member of the experiment."""
    begun: bool = False
    """True once the operating system has started the handle's process."""
    joined: bool = False
    last: UUID = NO_WORKER
    """The worker that ended last; `last_why` says why it did."""
    last_why: str = ""
    refused: Gone | None = None
    """The announcement with which it left, if it refuses the work and starting it again at once would be in vain."""
