"""`gigpo`: compares a run with the runs of its task, and a step with the steps of its task that began in the same
state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages.advantage import OneGroup
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField

if TYPE_CHECKING:
    # Imported where arrays are made: a check of an experiment needs the arguments alone.
    import numpy as np
    from numpy.typing import NDArray

Exact: TypeAlias = "NDArray[np.float64]"
"""Array of float64 numbers, for sums."""
NORMS = ("none", "std")
"""The accepted values of `fnorm`."""
STEP_REWARDS = ("step_reward",)
"""The accepted values of `step_reward_key`."""
STATES = ("state", "env_state_hash")
"""The accepted values of `env_state_hash_key`: the field of a rollout's result, and upstream's name for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GigpoAdvantage(OneGroup):
    """The advantage is A_E + omega A_S. A_E compares the sum of a run's step rewards with its group; A_S compares the
    discounted return of a step with all steps of its group that began in the same state, and is 0 for a step without
    another one.

    Equal states of different tasks are not compared: the same state may be far from one goal and close to another.

    Source: Feng et al. 2025, Group-in-Group Policy Optimization, arXiv 2505.10978.
    """

    omega: float = 1.0
    """Weight of the comparison of states."""
    gamma: float = 1.0
    """Discount of later rewards."""
    fnorm: str = "none"
    """`std`: advantages are also divided by the unbiased std; `none`: they are not."""
    epsilon: float = 1e-6
    """Small addend to the standard deviation, against division by zero."""
    step_reward_key: str = "step_reward"
    """Trinity-RFT's key of a step's reward: in rftd always the field `RolloutResult.step_reward`."""
    env_state_hash_key: str = "env_state_hash"
    """Trinity-RFT's key of the state at the beginning of a step: in rftd always the field `RolloutResult.state`."""

    def __post_init__(self) -> None:
        _fixed("step_reward_key", self.step_reward_key, STEP_REWARDS)
        _fixed("env_state_hash_key", self.env_state_hash_key, STATES)
        if self.fnorm not in NORMS:
            raise ConfigError(
                f"fnorm is {self.fnorm!r}", field="advantage_fn_args.fnorm", fix=f"use {' or '.join(NORMS)}"
            )
        if not self.omega >= 0:
            raise ConfigError(f"omega is {self.omega}", field="advantage_fn_args.omega", fix="use 0 or more")
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"gamma is {self.gamma}", field="advantage_fn_args.gamma", fix="use a number from 0 to 1")
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon is {self.epsilon}", field="advantage_fn_args.epsilon", fix="use one above 0")

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """The fields needed of the members: steps, step rewards, and states at the beginning of steps."""
        return frozenset({"steps", "step_rewards", "states"})

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        whole, discounted = self._returns(group)
        return (self._run_advantages(group, whole) + self.omega * self._state_advantages(group, discounted)).astype(
            np.float32
        )

    def _run_advantages(self, group: ClosedGroup, whole: Exact) -> Exact:
        """Returns A_E of each experience: its run's sum of rewards relative to the other runs of the group  # [G]"""
        import numpy as np

        # Over runs, not steps: a run of many steps must not count more often in the mean of its group.
        _, first, run = np.unique(group.run, return_index=True, return_inverse=True)
        return self._relative(whole[first], alone=whole[first] / (1 + self.epsilon))[run]

    def _state_advantages(self, group: ClosedGroup, returns: Exact) -> Exact:
        """Returns A_S of each experience: its return relative to those of other steps from an equal state  # [G]"""
        import numpy as np

        advantages = np.zeros(len(returns))
        # An empty state is unknown, not equal to another unknown one: such steps have no state advantage.
        anchors: dict[str, list[int]] = {}
        for member, state in enumerate(group.states or ()):
            if state:
                anchors.setdefault(state, []).append(member)
        for members in anchors.values():
            advantages[members] = self._relative(returns[members], alone=np.zeros(1))
        return advantages

    def _relative(self, values: Exact, *, alone: Exact) -> Exact:
        """Returns values less their mean, divided by the std with `fnorm: std`; `alone` for a single value."""
        if len(values) < 2:
            return alone
        std = float(values.std(ddof=1)) if self.fnorm == "std" else 1.0
        return (values - float(values.mean())) / (std + self.epsilon)

    def _returns(self, group: ClosedGroup) -> tuple[Exact, Exact]:
        """Returns the sum of rewards over each experience's run, and the discounted sum from its step on  # [G], [G]"""
        import numpy as np

        whole = np.zeros(len(group.rewards))
        discounted = np.zeros(len(group.rewards))
        rewards = self._step_rewards(group)
        for run in np.unique(group.run):
            places = np.flatnonzero(group.run == run)
            # Members come in any order; the discounted sum needs the steps of the run in theirs.
            places = places[np.argsort(group.step[places], kind="stable")]
            whole[places] = rewards[places].sum()
            ahead = 0.0
            for member in places[::-1]:
                ahead = discounted[member] = rewards[member] + self.gamma * ahead
        return whole, discounted

    def _step_rewards(self, group: ClosedGroup) -> Exact:
        """Returns the reward of each step; a run without step rewards has its complete reward at the last step
        # [G]
        """
        import numpy as np

        stated = np.full(len(group.rewards), np.nan) if group.step_rewards is None else group.step_rewards
        rewards = np.nan_to_num(np.asarray(stated, np.float64), nan=0.0)
        for run in np.unique(group.run):
            places = np.flatnonzero(group.run == run)
            if np.isnan(stated[places]).all():
                last = places[np.argmax(group.step[places])]
                rewards[last] = group.rewards[last]
        return rewards


def _fixed(name: str, key: str, known: tuple[str, ...]) -> None:
    """Raises ConfigError for a key that is not accepted: results have fixed fields for both."""
    if key not in known:
        raise ConfigError(
            f"{name} is {key!r}, and a workflow's result has the field {known[0]!r} for it",
            field=f"advantage_fn_args.{name}",
            fix=f"set {known[0]!r} in the workflow's results, and leave {name} out",
        )
