"""`Retries`: how often, and how long, one rollout may wait for a service that is busy."""

from __future__ import annotations

from random import Random
from typing import Final

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 60.0


class Retries:
    """The budget of one rollout: all its questions to a service draw from it."""

    def __init__(self, most: int, wait_s: float, random: Random) -> None:
        """At most so many retries, and pauses of at most `wait_s` together."""
        self.most = most
        self.wait_s = wait_s
        self.used = 0
        self.waited_s = 0.0
        self._random = random

    def pause(self, failures: int, after_s: float | None) -> float | None:
        """The pause before the next try of a question that failed so often; None: the budget is spent.

        It doubles, to at most a minute, and a random half of it is left out, so that many rollouts do not come back
        at one moment. It is never shorter than `after_s`, which the service asked for.
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
