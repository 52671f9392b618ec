"""The machines: how many units there are, who uses them for what, and how long things take."""

from __future__ import annotations

from enum import StrEnum

import msgspec

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
