"""`Watchdog`: notices that vLLM's processes ended or hang, whether or not anybody waits for an answer of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rftd.ops.errors import RolloutError

if TYPE_CHECKING:
    from rftd.ops.clock import Clock

HANG_S: Final = 300.0
"""The time without progress after which an engine hangs, where the experiment file says nothing: no step of a machine
that works takes so long, and it is a part of `explorer.max_timeout`."""
FIRST_S: Final = 600.0
"""The least of it until the first token is drawn, for kernels that are compiled only when they are needed."""
LOOK_S: Final = 1.0
"""The pause between two looks."""
_LONGEST_LOOK_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What is seen of vLLM at one moment."""

    dead: bool
    """True once one of its processes ended by itself."""
    work: int
    """The number of requests and calls that it has to answer."""
    tokens_total: int
    progress: tuple[int, ...]
    """Counters, one of which changes with whatever brings vLLM on."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The end of an engine, as its watchdog sees it."""

    quiet_s: float
    """The time for which it had work and made no progress; 0: its processes ended."""
    work: int
    """The number of requests and calls that it left unanswered."""

    def error(self, states: Sequence[str]) -> RolloutError:
        """The error of an engine that hangs; `states` are what its processes do."""
        return RolloutError(
            f"vLLM's engine hangs: no progress for {self.quiet_s:.0f} s (extra_engine_args.hang_timeout_s) with "
            f"{self.work} requests and calls to answer; its processes: {', '.join(states) or 'none is left'}",
            fix="look into the explorer's log; it is started again, and what ran is leased again",
        )


class Watchdog:
    """Looks after one engine until it is in trouble."""

    def __init__(self, look: Callable[[], Vitals], *, hang_timeout_s: float, clock: Clock) -> None:
        """`look` tells what is seen now. An engine hangs after `hang_timeout_s` without progress; 0: it never does."""
        self._look = look
        self._timeout_s = hang_timeout_s
        self._clock = clock

    async def trouble(self) -> Trouble:
        """The trouble, as soon as there is one; it waits for ever over an engine that works or has nothing to do."""
        quiet_s = 0.0
        before = self._look()
        looked_s = self._clock.monotonic_s()
        while True:
            await self._clock.sleep(LOOK_S)
            now = self._look()
            if now.dead:
                return Trouble(0.0, now.work)
            now_s = self._clock.monotonic_s()
            # A look that comes late says that this process was held up itself: what vLLM did meanwhile was not heard.
            passed_s = min(now_s - looked_s, _LONGEST_LOOK_S)
            looked_s = now_s
            waits = before.work and now.work and now.progress == before.progress
            quiet_s = quiet_s + passed_s if waits else 0.0
            if self._timeout_s and quiet_s >= self._bound_s(now):
                return Trouble(quiet_s, now.work)
            before = now

    def _bound_s(self, now: Vitals) -> float:
        return self._timeout_s if now.tokens_total else max(self._timeout_s, FIRST_S)
