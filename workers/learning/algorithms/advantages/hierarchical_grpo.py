"""`hierarchical_grpo`: each agent of a rollout is compared with the same agent, in its group or in its rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages.advantage import OneGroup
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField
from rftd.workers.learning.algorithms.advantages.moments import moments

LEVELS = ("none", "group")
"""The values of `std_cal_level`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HierarchicalGrpoAdvantage(OneGroup):
    """The advantage is the reward of a sequence less the mean of its peers: the sequences of its role in the group, or
    for a role in `rollout_roles` in its rollout alone. A sequence without another peer has the advantage 0.

    Of a proposer and its solvers, the proposers of a task compete with each other, and a solver with those who were
    given the same problem: neither the difficulty of a problem nor the other role's scale of rewards counts. Without
    `rollout_roles` it is GRPO by role; without roles, GRPO over the sequences of a group.

    Source: Prime Intellect 2026, prime-rl, hierarchical_grpo; its mean, without a std.
    """

    rollout_roles: Sequence[str] = ()
    """Roles compared within a rollout, such as the solvers of one proposed problem."""
    std_cal_level: str = "none"
    """`group`: the difference is divided by the std of the peers plus epsilon; `none`: it is not."""
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        names = self.rollout_roles
        if isinstance(names, str) or not all(names) or len(set(names)) != len(names):
            raise ConfigError(
                f"rollout_roles are {names!r}",
                field="advantage_fn_args.rollout_roles",
                fix="give a list of names of roles, none of them empty or twice, such as [solver]",
            )
        if self.std_cal_level not in LEVELS:
            raise ConfigError(
                f"std_cal_level is {self.std_cal_level!r}",
                field="advantage_fn_args.std_cal_level",
                fix=f"use {' or '.join(LEVELS)}",
            )
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon is {self.epsilon}", field="advantage_fn_args.epsilon", fix="use one above 0")

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """The fields needed of the members: steps, each with a reward of its own, and their roles."""
        return frozenset({"steps", "roles"})

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        rewards = group.exact_rewards()
        roles = group.roles or ("",) * len(rewards)
        peers: dict[tuple[str, int], list[int]] = {}
        for number, (role, run) in enumerate(zip(roles, group.run.tolist(), strict=True)):
            peers.setdefault((role, run if role in self.rollout_roles else -1), []).append(number)
        advantages = np.zeros(len(rewards))
        for numbers in peers.values():
            # Alone, a sequence differs from its mean by nothing, and has no std.
            if len(numbers) > 1:
                mean, std = moments(rewards[numbers])
                advantages[numbers] = (rewards[numbers] - mean) / (
                    std + self.epsilon if self.std_cal_level == "group" else 1.0
                )
        return advantages.astype(np.float32)
