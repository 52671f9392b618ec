"""`Retries`: one rollout's budget of retries and pauses for a busy service."""

from __future__ import annotations

from random import Random
from typing import Final

FIRST_PAUSE_S: Final = 0.5
"""First pause in seconds, doubled with each failure."""
LONGEST_PAUSE_S: Final = 60.0
"""Longest pause in seconds, unless the service itself requests a longer one."""


class Retries:
    """The retry budget of one rollout, shared by all its requests to a service."""

    def __init__(self, most: int, wait_s: float, random: Random) -> None:
        """Allows at most `most` retries, with pauses of at most `wait_s` in total."""
        self.most = most
        self.wait_s = wait_s
        self.used = 0
        """Number of retries made."""
        self.waited_s = 0.0
        """Total seconds of pauses."""
        self._random = random

    def pause(self, failures: int, after_s: float | None) -> float | None:
        """Returns the seconds to wait before the next retry of a request that failed `failures` times; None once the
        budget is spent.

        The pause doubles with each failure up to a minute, and a random share of up to half is left out, so that many
        rollouts do not retry at one moment. At least `after_s`, the pause requested by the service.
        """
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30))
        pause_s = longest * (0.5 + self._random.random() / 2)
        if after_s is not None:
            pause_s = max(pause_s, after_s)
        if self.used >= self.most or self.waited_s + pause_s > self.wait_s:
            return None
        self.used += 1
        self.waited_s += pause_s
        return pause_s
