"""`RunSnapshot`: one reading of everything relevant to a running experiment, the input of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RftdError
from rftd.ops.words import Words
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec.split_submission import HALF_BY_ROLE, ROLES
from rftd.workers.control.deciders import LastDecided
from rftd.workers.control.liveness import Liveness
from rftd.workers.hosts.executor import NO_WORKER


class Phase(StrEnum):
    """The phase of the run's loop, from reading the log to draining the workers."""

    READING = "reading"
    """The run folds the records of the log."""
    LOSS_CHECK = "loss_check"
    """The run compares the log with all remembered heads."""
    FENCING = "fencing"
    """The run acquires the leases of its roles."""
    LEADING = "leading"
    """The run decides and tends workers."""
    DRAINING = "draining"
    """The workers finish and leave."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One wanted worker, as seen by the fleet: its process, or the reason for its absence."""

    role: str
    """Role of the worker."""
    slot: int
    """Slot of an explorer; negative for a trainer."""
    pid: int | None
    """Process id; None while no process runs."""
    joined: bool
    """True once the log has the process's worker.started."""
    start_in_s: float
    """Seconds until the next start."""
    restarts: int
    """Number of consecutive restarts without progress."""
    last_why: str
    """Reason for the previous process's end."""
    waits: Words | None = None
    """Obstacle to the worker's start; None without one."""
    start_timeout_s: float = limits.WORKER_START_TIMEOUT_S
    """Seconds allowed for joining."""
    worker: UUID = NO_WORKER
    """The worker's id in its order."""


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """One reading of a run; the defaults describe a run known only from the log."""

    state: RunState
    """Folded state of the experiment."""
    liveness: Liveness
    """Times of the workers' last signs of life."""
    now_s: float
    """Monotonic time in seconds."""
    now_ns: int
    """Wall-clock time in nanoseconds since 1970."""
    said: LastDecided | None = None
    """The deciders' last decisions; None: the deciders are asked now."""
    processes: Sequence[Process] = ()
    """The wanted workers; empty without a fleet."""
    roles: frozenset[str] = ROLES
    """Roles with workers started by this daemon."""
    phase: Phase = Phase.LEADING
    """Phase of the run's loop."""
    append_s: float = 0.0
    """Age of the append under way in seconds; 0 if none."""
    offline: bool = False
    """True if only the log is read: no worker runs, whatever the log says."""
    failure: RftdError | None = None
    """Error for which the log takes no appends."""

    def starts(self, role: str) -> bool:
        """True if this daemon starts the experiment's workers of this role."""
        return role in self.roles and HALF_BY_ROLE[role] in self.state.spine.halves

    def joins_by(self, role: str) -> str:
        """Returns the commands bringing in a worker of a role not started by this daemon."""
        if (half := HALF_BY_ROLE[role]) not in self.state.spine.halves:
            return f"submit the same file with mode: {half}, or rftd worker {role}"
        more = f", or rftd serve --roles {role} on the same log" if self.roles else ""
        return f"rftd worker {role}{more}"
