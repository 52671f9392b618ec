"""`grpo`: the reward relative to its group, in standard deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import ConfigError
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField
from rftd.workers.algorithms.advantages.moments import moments, spread_out, std_of_all

STD_LEVELS = ("group", "batch")


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpoAdvantage:
    """(reward - mean) / (std + epsilon), with the unbiased std; a group of one has mean 0 and std 1."""

    epsilon: float = 1e-6
    std_threshold: float | None = None
    """Groups whose std is not above it are not informative: they are not planned, and have no advantage."""
    std_cal_level: str = "group"
    """`batch`: the std is that of all rewards of the batch's groups; the mean stays that of the group."""
    rank_penalty: float | None = None
    """Of n members the reward of the one with rank k is multiplied by 1 - rank_penalty * k / n; the rank counts members
    of a lower mean log-probability. So unlikely answers are worth more."""
    duplicate_experiences: bool = False
    """In the place of a group that is not informative another one of the batch is trained once more."""

    greedy_rollouts: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_common(self.epsilon, self.std_threshold, self.std_cal_level, STD_LEVELS)
        if self.rank_penalty is not None and not 0 <= self.rank_penalty <= 1:
            raise ConfigError(
                f"rank_penalty is {self.rank_penalty}",
                field="advantage_fn_args.rank_penalty",
                fix="use a number from 0 to 1",
            )
        if self.duplicate_experiences and self.std_threshold is None:
            raise ConfigError(
                "duplicate_experiences replaces groups that std_threshold filters out, but there is no std_threshold",
                field="advantage_fn_args.duplicate_experiences",
                fix="set std_threshold too, for example to 0.0",
            )

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """Mean log-probabilities, for ranks."""
        return frozenset({"mean_logprobs"} if self.rank_penalty else ())

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """In float64, rounded once at the end; zero where a group is not informative  # each [G]"""
        shaped = [self._shaped(group) for group in groups]
        whole = std_of_all(shaped) if self.std_cal_level == "batch" else None
        return [self._of(rewards, whole) for rewards in shaped]

    def informative(self, group: ClosedGroup) -> bool:
        """False if the std is at or below `std_threshold`; a group of one has no std and is none either.

        True where that cannot be known before the experiences are read, and where another group is to take its place.
        """
        if self.duplicate_experiences or (self.rank_penalty and group.mean_logprobs is None):
            return True
        return spread_out(self._shaped(group), self.std_threshold)

    def substitutes(self, groups: Sequence[ClosedGroup]) -> Mapping[int, int]:
        """For each group that is not informative another, by chance; none if every group is like that."""
        if not self.duplicate_experiences:
            return {}
        good = {index for index, group in enumerate(groups) if spread_out(self._shaped(group), self.std_threshold)}
        places = sorted(good, key=lambda index: groups[index].seed)
        return {
            index: places[int(np.random.default_rng(group.seed).integers(len(places)))]
            for index, group in enumerate(groups)
            if places and index not in good
        }

    def _of(self, rewards: NDArray[np.float64], whole: float | None) -> Floats:
        if not spread_out(rewards, self.std_threshold):
            return np.zeros(len(rewards), np.float32)
        mean, std = moments(rewards)
        return ((rewards - mean) / ((std if whole is None else whole) + self.epsilon)).astype(np.float32)

    def _shaped(self, group: ClosedGroup) -> NDArray[np.float64]:
        rewards = group.exact_rewards()
        if not self.rank_penalty or group.mean_logprobs is None:
            return rewards
        ranks = (group.mean_logprobs[:, None] > group.mean_logprobs[None, :]).sum(1).astype(np.float64)
        shaped: NDArray[np.float64] = rewards * (1 - self.rank_penalty * ranks / len(rewards))
        return shaped


def check_common(epsilon: float, std_threshold: float | None, level: str, levels: Sequence[str]) -> None:
    """Raises ConfigError for what no group-relative advantage takes."""
    if not epsilon > 0:
        raise ConfigError(f"epsilon is {epsilon}", field="advantage_fn_args.epsilon", fix="use one above 0")
    if std_threshold is not None and not std_threshold >= 0:
        raise ConfigError(
            f"std_threshold is {std_threshold}", field="advantage_fn_args.std_threshold", fix="use 0 or more"
        )
    if level not in levels:
        raise ConfigError(
            f"std_cal_level is {level!r}", field="advantage_fn_args.std_cal_level", fix=f"use {' or '.join(levels)}"
        )
