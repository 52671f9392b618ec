"""`gigpo`: how a run did among those of its task, and a step among those that began in the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import ConfigError
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField

Exact = NDArray[np.float64]
NORMS = ("none", "std")


@dataclass(frozen=True, kw_only=True, slots=True)
class GigpoAdvantage:
    """A_E + omega A_S. A_E: the sum of a run's step rewards relative to its group. A_S: the discounted return of a step
    relative to all steps of the batch that began in the same state; 0 for a step that is alone there."""

    omega: float = 1.0
    gamma: float = 1.0
    fnorm: str = "none"
    """`std`: divide by the unbiased std too."""
    epsilon: float = 1e-6

    greedy_rollouts: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.fnorm not in NORMS:
            raise ConfigError(
                f"fnorm is {self.fnorm!r}", field="advantage_fn_args.fnorm", fix=f"use {' or '.join(NORMS)}"
            )
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma is {self.gamma}", field="advantage_fn_args.gamma", fix="use a number from 0 to 1")
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon is {self.epsilon}", field="advantage_fn_args.epsilon", fix="use one above 0")

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """Steps, what they brought, and the states that they began in."""
        return frozenset({"steps", "step_rewards", "states"})

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """In float64, rounded once at the end  # each [G]"""
        returns = [self._returns(group) for group in groups]
        steps = self._of_states(groups, [discounted for _, discounted in returns])
        return [
            (self._of_runs(group, whole) + self.omega * of_states).astype(np.float32)
            for group, (whole, _), of_states in zip(groups, returns, steps, strict=True)
        ]

    def informative(self, group: ClosedGroup) -> bool:
        """True: a group without spread may still have steps that differ from those of other groups."""
        return True

    def _of_runs(self, group: ClosedGroup, whole: Exact) -> Exact:
        _, first, run = np.unique(group.run, return_index=True, return_inverse=True)
        return self._relative(whole[first], alone=whole[first] / (1 + self.epsilon))[run]

    def _of_states(self, groups: Sequence[ClosedGroup], returns: Sequence[Exact]) -> Sequence[Exact]:
        found = [np.zeros(len(each)) for each in returns]
        anchors: dict[str, list[tuple[int, int]]] = {}
        for index, group in enumerate(groups):
            for member, state in enumerate(group.states or ()):
                if state:
                    anchors.setdefault(state, []).append((index, member))
        for places in anchors.values():
            values = np.array([returns[index][member] for index, member in places])
            scores = self._relative(values, alone=np.zeros(1))
            for (index, member), score in zip(places, scores, strict=True):
                found[index][member] = score
        return found

    def _relative(self, values: Exact, *, alone: Exact) -> Exact:
        if len(values) < 2:
            return alone
        std = float(values.std(ddof=1)) if self.fnorm == "std" else 1.0
        return (values - float(values.mean())) / (std + self.epsilon)

    def _returns(self, group: ClosedGroup) -> tuple[Exact, Exact]:
        """The plain sum over each experience's run, and the discounted sum from its step on  # [G], [G]"""
        whole, discounted = np.zeros(len(group.rewards)), np.zeros(len(group.rewards))
        rewards = self._step_rewards(group)
        for run in np.unique(group.run):
            places = np.flatnonzero(group.run == run)
            places = places[np.argsort(group.step[places], kind="stable")]
            whole[places] = rewards[places].sum()
            ahead = 0.0
            for place in places[::-1]:
                ahead = discounted[place] = rewards[place] + self.gamma * ahead
        return whole, discounted

    def _step_rewards(self, group: ClosedGroup) -> Exact:
        """What each step brought; of a run that does not say so for any step, its reward with the last one  # [G]"""
        given = np.full(len(group.rewards), np.nan) if group.step_rewards is None else group.step_rewards
        found = np.nan_to_num(np.asarray(given, np.float64), nan=0.0)
        for run in np.unique(group.run):
            places = np.flatnonzero(group.run == run)
            if np.isnan(given[places]).all():
                last = places[np.argmax(group.step[places])]
                found[last] = group.rewards[last]
        return found
