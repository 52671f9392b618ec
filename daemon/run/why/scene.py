"""`Scene`: one reading of everything that a running experiment depends on, from which an answer is made."""

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
from rftd.streams.spec.split_submission import HALF_OF, ROLES
from rftd.workers.control.deciders import LastDecided
from rftd.workers.control.liveness import Liveness
from rftd.workers.hosts.executor import NO_WORKER


class Phase(StrEnum):
    """The phase of the run's loop."""

    READING = "reading"
    """It folds what the log holds."""
    HEARING = "hearing"
    """It compares the log with what remembers it."""
    FENCING = "fencing"
    LEADING = "leading"
    DRAINING = "draining"


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one wanted worker, as the fleet sees it."""

    role: str
    slot: int
    pid: int | None
    """None while none runs."""
    joined: bool
    start_in_s: float
    """The time until it is started again."""
    restarts: int
    """Restarts in a row, without progress between them."""
    last_why: str
    """The reason why the process before it ended."""
    waits: Words | None = None
    """The obstacle to its start; None if nothing is in its way."""
    start_timeout_s: float = limits.WORKER_START_TIMEOUT_S
    """The time that it has to join."""
    worker: UUID = NO_WORKER
    """The worker that its order names."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One reading of a run; what is left out is so for one that is known from the log alone."""

    state: RunState
    liveness: Liveness
    now_s: float
    """Monotonic."""
    now_ns: int
    said: LastDecided | None = None
    """The deciders' last words; None: they are asked now what they would say."""
    processes: Sequence[Process] = ()
    roles: frozenset[str] = ROLES
    """The roles whose workers this daemon starts."""
    phase: Phase = Phase.LEADING
    append_s: float = 0.0
    """The age of the append under way; 0 if there is none."""
    failure: RftdError | None = None
    """The error for which the log takes no appends."""

    def starts(self, role: str) -> bool:
        """True if this daemon starts the experiment's workers of that role."""
        return role in self.roles and HALF_OF[role] in self.state.spine.halves

    def joins_by(self, role: str) -> str:
        """The commands that bring a worker of a role that this daemon does not start."""
        if (half := HALF_OF[role]) not in self.state.spine.halves:
            return f"submit the same file with mode: {half}, or rftd worker {role}"
        more = f", or rftd serve --roles {role} on the same log" if self.roles else ""
        return f"rftd worker {role}{more}"
