"""The machines: how many units there are, who uses them for what, and how long things take."""

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
    """The ways in which units take new weights."""

    INFLIGHT = "inflight"
    """Units take them at once: what runs goes on with them."""
    DRAIN_EACH = "drain_each"
    """Each unit takes them when its last rollout has ended; it begins none before."""
    DRAIN_ALL = "drain_all"
    """Units take them all together, as a collective transfer needs it: when the last rollout of any has ended."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """Units that either generate or train. A unit that generates runs `slots` rollouts at once, each at full speed."""

    units: int = 16
    slots: int = 32
    train_units: int = 6
    """Units that train; the others generate."""
    train_s: float = 1.0
    """Seconds of a training step if every unit trained; on k of n units it takes n / k as long."""
    publish_s: float = 0.0
    """Seconds from the end of a step until its weights are at the units. The trainer goes on meanwhile."""
    swap_s: float = 0.0
    """Seconds that a unit's rollouts stand still while it takes new weights."""
    updates: SimulatedUpdates = SimulatedUpdates.INFLIGHT
    colocated: bool = False
    """Every unit generates, and every unit trains: of use to a policy that never does both at once."""

    def __post_init__(self) -> None:
        if not self.colocated and not 0 < self.train_units < self.units:
            raise UsageError(
                f"{self.train_units} of {self.units} units train",
                field="train_units",
                fix=f"1 to {self.units - 1}, so that both sides have one" if self.units > 1 else "2 units or more",
            )

    @property
    def rollout_units(self) -> int:
        """Units that generate."""
        return self.units if self.colocated else self.units - self.train_units

    @property
    def step_s(self) -> float:
        """Seconds of a training step on the units that train."""
        return self.train_s if self.colocated else self.train_s * self.units / self.train_units

    def split(self, train_units: int) -> System:
        """The system with its units divided otherwise."""
        return msgspec.structs.replace(self, train_units=train_units, colocated=False)

    def optimum_per_s(self, batch: int, mean_s: float) -> float:
        """Experiences per second if neither side ever waited, stood still or dropped anything: the slower one's."""
        generated = self.rollout_units * self.slots / mean_s
        # A step that takes no time is a trainer that never holds anybody up.
        return generated if self.step_s == 0 else min(generated, batch / self.step_s)

    def best_split(self, batch: int, mean_s: float) -> System:
        """The whole split of the units with the highest optimum; of two the one that trains on fewer."""
        splits = [self.split(train_units) for train_units in range(1, self.units)]
        return max(splits, key=lambda each: each.optimum_per_s(batch, mean_s))


_NORMAL: Final = NormalDist()
_P99: Final = _NORMAL.inv_cdf(0.99)


class LongTail(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of rollouts, each drawn on its own. A tail of 1 makes them all equal."""

    median_s: float = 1.0
    tail: float = 10.0
    """The 99th percentile over the median, before the cut."""
    cut: float = 10.0
    """The longest rollout, in medians: what would take longer ends there, as a response does at its longest."""

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm."""
        return math.log(self.tail) / _P99

    @property
    def mean_s(self) -> float:
        """The mean, in closed form."""
        sigma = self.sigma
        if sigma == 0:
            return self.median_s * min(1.0, self.cut)
        reach = math.log(self.cut)
        # E[min(X, c)] of a log-normal X with median 1: the part below the cut, and c for everything beyond it.
        below = math.exp(sigma * sigma / 2) * _NORMAL.cdf((reach - sigma * sigma) / sigma)
        return self.median_s * (below + self.cut * (1 - _NORMAL.cdf(reach / sigma)))

    def draw(self, random: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
        """`count` durations, in seconds."""
        multiples: npt.NDArray[np.float64] = np.exp(self.sigma * random.standard_normal(count))
        durations: npt.NDArray[np.float64] = self.median_s * np.minimum(multiples, self.cut)
        return durations
