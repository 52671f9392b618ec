"""`Scene`: one reading of everything that a running experiment depends on, from which an answer is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from rftd.ops.errors import RftdError
from rftd.streams.folds.run_state import RunState
from rftd.streams.split_submission import HALF_OF
from rftd.workers.control.deciders import LastDecided
from rftd.workers.control.liveness import Liveness


class Phase(StrEnum):
    """The phase of the run's loop."""

    READING = "reading"
    """It folds what the log holds."""
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
    running_s: float
    """The time since it was started, or last seen as a member."""
    restarts: int
    """Restarts in a row, without progress between them."""
    last_why: str
    """The reason why the process before it ended."""
    waits_for: str = ""
    """The reason why its start waits; empty if nothing is in its way."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One reading of a run."""

    name: str
    state: RunState
    said: Callable[[], LastDecided]
    """The deciders' last words. A function, for where they are asked only now a third party's policy may raise."""
    liveness: Liveness
    processes: Sequence[Process]
    roles: frozenset[str]
    """The roles whose workers this daemon starts."""
    phase: Phase
    append_s: float
    """The age of the append under way; 0 if there is none."""
    failure: RftdError | None
    """The error for which the log takes no appends."""
    now_s: float
    """Monotonic."""
    now_ns: int

    def starts(self, role: str) -> bool:
        """True if this daemon starts the experiment's workers of that role."""
        return role in self.roles and HALF_OF[role] in self.state.spine.halves

    def joins_by(self, role: str) -> str:
        """The commands that bring a worker of a role that this daemon does not start."""
        if (half := HALF_OF[role]) not in self.state.spine.halves:
            return f"submit the same file with mode: {half}, or rftd worker {role}"
        more = f", or rftd serve --roles {role} on the same log" if self.roles else ""
        return f"rftd worker {role}{more}"
