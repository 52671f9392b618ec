"""`Watchdog`: notices ended or hanging vLLM processes, even while no caller waits for an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rftd.ops.errors import RolloutError

if TYPE_CHECKING:
    from rftd.ops.clock import Clock

HANG_S: Final = 300.0
"""Default seconds without progress until an engine counts as hanging: longer than any step of a working machine, and a
part of `explorer.max_timeout`.
"""
FIRST_S: Final = 600.0
"""Least time-out in seconds until the first token is drawn, for kernels compiled on demand."""
POLL_INTERVAL_S: Final = 1.0
"""Seconds between two checks."""
_MAX_POLL_INTERVAL_S: Final = 5.0
"""Longest pause between two checks in seconds."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """State of vLLM at one moment: liveness, open work and progress counters."""

    dead: bool
    """True once a process has ended without being told to."""
    work: int
    """Number of unanswered requests and calls."""
    tokens_total: int
    """Number of tokens drawn so far."""
    progress: tuple[int, ...]
    """Counters, at least one of which changes with any progress."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The failure of an engine detected by its watchdog."""

    quiet_s: float
    """Seconds with work but without progress; 0: the processes ended."""
    work: int
    """Number of requests and calls left unanswered."""

    def error(self, states: Sequence[str]) -> RolloutError:
        """Returns the error of a hanging engine; `states` describes its processes."""
        return RolloutError(
            f"vLLM's engine hangs: no progress for {self.quiet_s:.0f} s (extra_engine_args.hang_timeout_s) with "
            f"{self.work} requests and calls to answer; its processes: {', '.join(states) or 'none is left'}",
            fix="see the explorer's log; the explorer restarts, and its rollouts are leased again",
        )


class Watchdog:
    """Watches one engine's vitals until its processes end or hang."""

    def __init__(self, look: Callable[[], Vitals], *, hang_timeout_s: float, clock: Clock) -> None:
        """`look` returns the engine's current vitals. An engine with work counts as hanging after `hang_timeout_s`
        without progress; 0: never.
        """
        self._look = look
        self._timeout_s = hang_timeout_s
        self._clock = clock

    async def trouble(self) -> Trouble:
        """Waits until the engine's processes end or hang, and returns the failure; waits for ever while it works or is
        idle.
        """
        quiet_s = 0.0
        before = self._look()
        looked_s = self._clock.monotonic_s()
        while True:
            await self._clock.sleep(POLL_INTERVAL_S)
            now = self._look()
            if now.dead:
                return Trouble(0.0, now.work)
            now_s = self._clock.monotonic_s()
            # A late check means that this process itself was delayed, and vLLM's progress meanwhile went unnoticed.
            passed_s = min(now_s - looked_s, _MAX_POLL_INTERVAL_S)
            looked_s = now_s
            waits = before.work and now.work and now.progress == before.progress
            quiet_s = quiet_s + passed_s if waits else 0.0
            if self._timeout_s and quiet_s >= self._bound_s(now):
                return Trouble(quiet_s, now.work)
            before = now

    def _bound_s(self, now: Vitals) -> float:
        """Returns the seconds allowed without progress; more before the first token."""
        return self._timeout_s if now.tokens_total else max(self._timeout_s, FIRST_S)
