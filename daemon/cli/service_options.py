"""`ServiceOptions`: the options of a daemon, checked, and what they say of its places."""

from __future__ import annotations

from pathlib import Path

import msgspec
from sqlalchemy.engine import make_url

from rftd.daemon.run.supervisor.disk_guard import DiskLimits
from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.entrance import EntranceOptions
from rftd.daemon.serve.keeping import Keeping
from rftd.daemon.serve.launching import Launching
from rftd.daemon.trust.allowances import NOTHING_MORE, Allowances
from rftd.ops import limits
from rftd.ops.own_folder import FolderAccess
from rftd.ops.tracing.trace_options import TraceOptions
from rftd.streams.log.backend import LogUrl, backend_of


class ServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `rftd serve`."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 7070
    """0: a free one."""
    door: EntranceOptions = EntranceOptions()
    """The options of the API's access control."""
    worker_lost_after_s: float = limits.WORKER_LOST_AFTER_S
    """A worker that sends no heartbeat for this long is ended and started anew."""
    release_after_s: float = limits.RELEASE_AFTER_S
    """An experiment that a person paused keeps its workers and its slot for so long."""
    log_at: LogUrl | None = None
    """The place of the log, checked; None for the embedded one in `data`."""
    state_url: str = ""
    """postgresql://... of the projections; else a SQLite file in `data`. May hold a password: never printed."""
    disk: DiskLimits = DiskLimits()
    slots: int = 1
    """Experiments that run at once."""
    keeping: Keeping = Keeping()
    """The time for which payloads stay in the log, and files at their places."""
    take_over: tuple[str, ...] = ()
    """Experiments whose folders this log gets, though they are another log's."""
    accept_loss: tuple[str, ...] = ()
    """Experiments that go on although the log has lost records of them."""
    accepted_by: str = ""
    """The person who accepts the loss."""
    prices: dict[str, float] = {}
    """Dollars for an hour of an accelerator, by its kind."""
    launching: Launching = Launching()
    """The roles whose workers are started here, and where."""
    allowances: Allowances = NOTHING_MORE
    """The names that submissions may hold which are not the owner's."""
    folders: FolderAccess = FolderAccess.PRIVATE
    """The users who may enter what workers make."""
    traces: TraceOptions | None = None
    """The receiver of the spans of daemon and workers; None: nothing is traced."""

    @property
    def clustered(self) -> bool:
        """True if the log or the tables are elsewhere, so that they may be away for a while."""
        return self.log_at is not None or bool(self.state_url)

    def where(self, folder: DataFolder) -> str:
        """The places of log and state, for people; without secrets."""
        if not self.clustered:
            return f"embedded log and state under {folder.root}: for one machine"
        log = f"embedded log under {folder.root}"
        if self.log_at is not None:
            log = f"log on {backend_of(self.log_at).place(self.log_at)}"
        state = _without_secrets(self.state_url) if self.state_url else f"under {folder.root}"
        return f"{log}, state {state}"


def _without_secrets(url: str) -> str:
    parsed = make_url(url)
    return f"in {parsed.database or 'the default database'} at {parsed.host or 'the local socket'}"
