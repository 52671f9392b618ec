"""The machines: the number of units, their division between generation and training, and all durations."""

from __future__ import annotations

import math
from enum import StrEnum
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from rftd.ops.errors import UsageError


class SimulatedUpdates(StrEnum):
    """How generating units load new weights."""

    INFLIGHT = "inflight"
    """At once: running rollouts continue with the new weights."""
    DRAIN_EACH = "drain_each"
    """Each unit when its last rollout has ended; it begins none before."""
    DRAIN_ALL = "drain_all"
    """All units together, when the last rollout of any has ended, as a collective transfer requires."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """Units that either generate or train. A generating unit runs `slots` rollouts at once, each at full speed."""

    units: int = 16
    """Number of all units."""
    slots: int = 32
    """Number of concurrent rollouts of a generating unit."""
    train_units: int = 6
    """Number of training units; the others generate."""
    train_s: float = 1.0
    """Seconds of a training step with every unit; on k of n units a step takes n / k times as long."""
    publish_s: float = 0.0
    """Seconds from the end of a step until its weights reach the units. The trainer continues meanwhile."""
    swap_s: float = 0.0
    """Seconds of standstill of a unit's rollouts while new weights are loaded."""
    updates: SimulatedUpdates = SimulatedUpdates.INFLIGHT
    """How generating units load new weights."""
    colocated: bool = False
    """True: every unit generates, and every unit trains, for a policy that never does both at once."""

    def __post_init__(self) -> None:
        if not self.colocated and not 0 < self.train_units < self.units:
            raise UsageError(
                f"{self.train_units} of {self.units} units train",
                field="train_units",
                fix=f"1 to {self.units - 1}, so that both sides have one" if self.units > 1 else "2 units or more",
            )

    @property
    def rollout_units(self) -> int:
        """Number of generating units."""
        return self.units if self.colocated else self.units - self.train_units

    @property
    def step_s(self) -> float:
        """Seconds of a training step on the training units."""
        return self.train_s if self.colocated else self.train_s * self.units / self.train_units

    def split(self, train_units: int) -> System:
        """Returns the system with `train_units` units training and the others generating."""
        return msgspec.structs.replace(self, train_units=train_units, colocated=False)

    def optimum_per_s(self, batch: int, mean_s: float) -> float:
        """Returns experiences per second of the slower side, if neither side ever waited, stood still or dropped
        anything.
        """
        generated = self.rollout_units * self.slots / mean_s
        # A step of zero seconds means a trainer that is never the bottleneck.
        return generated if self.step_s == 0 else min(generated, batch / self.step_s)

    def best_split(self, batch: int, mean_s: float) -> System:
        """Returns the split of the units with the highest optimum, in integers; of equal ones that with fewer training
        units.
        """
        splits = [self.split(train_units) for train_units in range(1, self.units)]
        return max(splits, key=lambda split: split.optimum_per_s(batch, mean_s))


_NORMAL: Final = NormalDist()
"""Standard normal distribution."""
_P99: Final = _NORMAL.inv_cdf(0.99)
"""99th percentile of the standard normal distribution."""


class LongTail(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of rollouts, drawn independently from a log-normal distribution. A tail of 1 makes all equal."""

    median_s: float = 1.0
    """Median duration in seconds."""
    tail: float = 10.0
    """99th percentile divided by the median, before the cut."""
    cut: float = 10.0
    """Longest rollout, in medians: longer draws end there, as a response does at its maximum length."""

    @property
    def sigma(self) -> float:
        """Standard deviation of the duration's logarithm, before the cut."""
        return math.log(self.tail) / _P99

    @property
    def mean_s(self) -> float:
        """Mean duration in seconds, in closed form."""
        sigma = self.sigma
        if sigma == 0:
            return self.median_s * min(1.0, self.cut)
        reach = math.log(self.cut)
        # E[min(X, c)] of a log-normal X with median 1: the part below the cut, and c for everything beyond it.
        below = math.exp(sigma * sigma / 2) * _NORMAL.cdf((reach - sigma * sigma) / sigma)
        return self.median_s * (below + self.cut * (1 - _NORMAL.cdf(reach / sigma)))

    def draw(self, random: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
        """Draws `count` durations in seconds."""
        multiples: npt.NDArray[np.float64] = np.exp(self.sigma * random.standard_normal(count))
        durations: npt.NDArray[np.float64] = self.median_s * np.minimum(multiples, self.cut)
        return durations
