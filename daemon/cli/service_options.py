"""`ServiceOptions`: the checked options of a daemon, and the places of its log and state."""

from __future__ import annotations

from pathlib import Path

import msgspec
from sqlalchemy.engine import make_url

from rftd.daemon.cli.alert_options import AlertOptions
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
    """The data folder."""
    host: str = "127.0.0.1"
    """Address on which the API listens."""
    port: int = 7070
    """TCP port; 0: a free one."""
    door: EntranceOptions = EntranceOptions()
    """Options of the API's access control."""
    worker_lost_after_s: float = limits.WORKER_LOST_AFTER_S
    """Seconds without a heartbeat before a worker is ended and restarted."""
    release_after_s: float = limits.RELEASE_AFTER_S
    """Seconds for which an experiment paused by a person keeps its workers and its slot."""
    log_at: LogUrl | None = None
    """URL of the log, checked; None for the embedded one in `data`."""
    state_url: str = ""
    """postgresql://... of the projections; else a SQLite file in `data`. May contain a password: never printed."""
    disk: DiskLimits = DiskLimits()
    """Limits on disk space."""
    slots: int = 1
    """Number of experiments running at once."""
    keeping: Keeping = Keeping()
    """Rules for keeping payloads in the log, and files in their folders."""
    take_over: tuple[str, ...] = ()
    """Experiments with folders to be taken over from another log."""
    accept_loss: tuple[str, ...] = ()
    """Experiments to be continued although the log has lost their records."""
    accepted_by: str = ""
    """Name of the person accepting the loss."""
    prices: dict[str, float] = {}
    """Dollars per hour of an accelerator, by kind."""
    alerts: AlertOptions = AlertOptions()
    """Receivers of alerts."""
    launching: Launching = Launching()
    """Roles with workers started here, and their hosts."""
    allowances: Allowances = NOTHING_MORE
    """Names allowed in submissions of everybody but the owner."""
    folders: FolderAccess = FolderAccess.PRIVATE
    """Users with access to files made by workers."""
    traces: TraceOptions | None = None
    """Receiver of the spans of daemon and workers; None: no tracing."""

    @property
    def clustered(self) -> bool:
        """True if the log or the tables are on servers, and so may be temporarily away."""
        return self.log_at is not None or bool(self.state_url)

    def where(self, folder: DataFolder) -> str:
        """Returns the places of log and state, for people; without secrets."""
        if not self.clustered:
            return f"embedded log and state under {folder.root}: for one machine"
        log = f"embedded log under {folder.root}"
        if self.log_at is not None:
            log = f"log on {backend_of(self.log_at).place(self.log_at)}"
        state = _database_place(self.state_url) if self.state_url else f"under {folder.root}"
        return f"{log}, state {state}"


def _database_place(url: str) -> str:
    """Returns database and host of a URL in words, without user and password."""
    parsed = make_url(url)
    return f"in {parsed.database or 'the default database'} at {parsed.host or 'the local socket'}"
