"""`rae`: the reward of each agent less a moving average of the same agent's rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages.advantage import OneGroup
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField


@dataclass(frozen=True, kw_only=True, slots=True)
class RaeAdvantage(OneGroup):
    """The advantage is R - b of the role, where b is a moving average of the role's rewards, from 0 at the stage's
    beginning: a batch with n sequences of a role and their mean M leaves b = decay^n b + (1 - decay^n) M.

    In a zero-sum game the rewards of a rollout cancel out, and the mean of its group says nothing: each role has a
    baseline of its own, so that an edge of the first to move is nobody's merit. Groups may have a single rollout.
    Checkpoints keep the baselines; a step reports them as `roles/ROLE/baseline`. Without roles there is one baseline.

    Source: Liu et al. 2025, SPIRAL (role-conditioned advantage estimation), arXiv 2506.24119; there the average moves
    with each game, here with each batch, by as much: the order within a batch must not matter.
    """

    decay: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ConfigError(
                f"decay is {self.decay}", field="advantage_fn_args.decay", fix="use a number from 0 to below 1"
            )

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """The field needed of the members: the steps, each with a reward of its own."""
        return frozenset({"steps"})

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the rewards: the trainer takes the baselines from them, by `relative`  # [G]"""
        return group.rewards.astype("float32")

    def relative(
        self, roles: Sequence[str], rewards: Sequence[float], remembered: Mapping[str, float]
    ) -> tuple[list[float], dict[str, float]]:
        """Returns the advantage of each sequence, and the baseline of each role after the batch."""
        by_role: dict[str, list[float]] = {}
        for role, reward in zip(roles, rewards, strict=True):
            by_role.setdefault(role, []).append(reward)
        after = dict(remembered)
        for role, of_role in by_role.items():
            # fsum: exact, so that the order of a batch's sequences does not show in the last bit.
            mean = math.fsum(of_role) / len(of_role)
            weight = self.decay ** len(of_role)
            after[role] = weight * after.get(role, 0.0) + (1 - weight) * mean
        return [reward - remembered.get(role, 0.0) for role, reward in zip(roles, rewards, strict=True)], after
