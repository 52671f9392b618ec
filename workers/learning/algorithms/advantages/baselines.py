"""Advantages relative to a baseline of a group's rewards; some also use lengths, greedy rollouts, the rest of the batch
or seeded draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages.advantage import OneGroup
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField
from rftd.workers.learning.algorithms.advantages.grpo import check_common
from rftd.workers.learning.algorithms.advantages.moments import moments

if TYPE_CHECKING:
    # Imported where arrays are made: a check of an experiment needs the arguments alone.
    import numpy as np
    from numpy.typing import NDArray


class ReinforceAdvantage(OneGroup):
    """The advantage is the reward, without a baseline."""

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the rewards as advantages  # [G]"""
        return group.rewards.astype("float32")


class RlooAdvantage(OneGroup):
    """The advantage is the reward minus the mean of the other members' rewards, n / (n - 1) (reward - mean).

    The single member of a group of one has its reward as advantage.

    Source: Ahmadian et al. 2024, Back to Basics (RLOO), arXiv 2402.14740.
    """

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        return leave_one_out(group.exact_rewards()).astype(np.float32)


def leave_one_out(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns each reward minus the mean of all other rewards; a single reward is returned unchanged  # [G] -> [G]"""
    count = len(rewards)
    return (rewards - rewards.mean()) * (count / (count - 1)) if count > 1 else rewards


class RemaxAdvantage(OneGroup):
    """The advantage is the reward minus the reward of the group's greedy rollout, which is not trained.

    If the greedy rollout failed, the mean of the other members is the baseline, as in `rloo`.

    Source: Li et al. 2023, ReMax, arXiv 2310.10505.
    """

    greedy_rollouts: ClassVar[int] = 1
    """One greedy rollout is the baseline."""

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        rewards = group.exact_rewards()
        greedy = group.greedy
        if greedy is None or not greedy.any():
            return leave_one_out(rewards).astype(np.float32)
        return np.where(greedy, 0.0, rewards - rewards[greedy].mean()).astype(np.float32)


class OpoAdvantage(OneGroup):
    """The advantage is reward - sum(length * reward) / sum(length), where length counts trained tokens.

    This baseline minimises the variance of the gradient, if the gradient of a response grows with its length. The
    single member of a group of one has its reward as advantage.

    Source: Hao et al. 2025, On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585; as in verl.
    """

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """The field needed of the members: the lengths of the responses."""
        return frozenset({"lengths"})

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once; without lengths all rollouts count equally
        # [G]
        """
        import numpy as np

        rewards = group.exact_rewards()
        if len(rewards) < 2:
            return rewards.astype(np.float32)
        lengths = np.ones(len(rewards)) if group.lengths is None else group.lengths.astype(np.float64)
        total = float(lengths.sum())
        baseline = float((lengths * rewards).sum()) / total if total else float(rewards.mean())
        return (rewards - baseline).astype(np.float32)


class GpgAdvantage(OneGroup):
    """The advantage is alpha (reward - mean), where alpha = B / (B - M), with M of the batch's B experiences in groups
    of equal rewards.

    Those M have no gradient, so a mean over all B would be too small by the factor alpha. The single member of a group
    of one has its reward as advantage.

    Source: Chu et al. 2025, GPG, arXiv 2504.02546, with F_norm = 1.
    """

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the reward minus the mean, without the batch's factor alpha  # [G]"""
        import numpy as np

        return self._centred(group).astype(np.float32)

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Returns the advantages of each group, computed in float64 and rounded once at the end  # each [G]"""
        import numpy as np

        # alpha counts experiences of the whole batch, so this function cannot be asked group by group.
        centred = [self._centred(group) for group in groups]
        every = sum(len(values) for values in centred)
        teaching = sum(len(values) for values in centred if values.any())
        scale = every / teaching if teaching else 1.0
        return [(values * scale).astype(np.float32) for values in centred]

    def _centred(self, group: ClosedGroup) -> NDArray[np.float64]:
        """Returns the rewards less their mean, exactly 0 for equal rewards; a single reward is unchanged  # [G]"""
        import numpy as np

        rewards = group.exact_rewards()
        if len(rewards) < 2:
            return rewards
        # A mean may be off by a rounding: equal rewards shall count as such.
        return np.zeros(len(rewards)) if (rewards == rewards[0]).all() else rewards - rewards.mean()


class MaxRlAdvantage(OneGroup):
    """The advantage is (reward - mean) / mean: success on a task seldom solved counts more, as in maximum likelihood.

    For rewards of 0 and 1 the gradient is that of the log-probability of success, truncated at the number of rollouts.
    Rewards are meant to be at least 0: a group with a mean of 0 or less has no advantages.

    Source: Tajwar et al. 2026, Maximum Likelihood Reinforcement Learning, arXiv 2602.02710.
    """

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        rewards = group.exact_rewards()
        mean = float(rewards.mean())
        return (rewards / mean - 1.0 if mean > 0 else np.zeros(len(rewards))).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class AsymreAdvantage(OneGroup):
    """The advantage is reward - (mean + baseline_shift); with a shift below 0, good answers count more than bad ones.

    The single member of a group of one has its reward as advantage.
    Source: Arnal et al. 2025, Asymmetric REINFORCE, arXiv 2506.20520.
    """

    baseline_shift: float = -0.1
    """Addend to the group's mean."""

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        rewards = group.exact_rewards()
        baseline = rewards.mean() + self.baseline_shift if len(rewards) > 1 else 0.0
        return (rewards - baseline).astype(np.float32)


class BestAdvantage(OneGroup):
    """The advantage is 1 for the experiences with the group's highest reward, else 0; 0 for all if all rewards are
    equal.

    The single member of a group of one has the advantage 1. For losses weighted by the advantage, such as `raft`'s.
    """

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, 1 or 0  # [G]"""
        import numpy as np

        rewards = group.rewards
        if len(rewards) < 2:
            return np.ones(len(rewards), np.float32)
        # Compared in float32 as they were recorded: equal rewards are equal bits, so no tolerance is needed.
        best = rewards == rewards.max()
        return np.where(best & ~best.all(), 1.0, 0.0).astype(np.float32)


BASELINES = ("mean", "logavgexp")
"""The values of `OpmdAdvantage.opmd_baseline`."""


@dataclass(frozen=True, kw_only=True)
class OpmdAdvantage(OneGroup):
    """The advantage is reward - baseline, where the baseline is the mean, or tau log mean exp(reward / tau).

    The single member of a group of one has its reward as advantage.
    Source: Pan et al. 2025, Trinity-RFT, arXiv 2505.17826, online policy mirror descent.
    """

    opmd_baseline: str = "mean"
    """Name of the baseline, one of `BASELINES`."""
    tau: float = 1.0
    """Temperature of the baseline `logavgexp`."""

    def __post_init__(self) -> None:
        if self.opmd_baseline not in BASELINES:
            raise ConfigError(
                f"opmd_baseline is {self.opmd_baseline!r}",
                field="advantage_fn_args.opmd_baseline",
                fix=f"use {' or '.join(BASELINES)}",
            )
        if not self.tau > 0:
            raise ConfigError(f"tau is {self.tau}", field="advantage_fn_args.tau", fix="use one above 0")

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        rewards = group.exact_rewards()
        if len(rewards) < 2:
            return rewards.astype(np.float32)
        if self.opmd_baseline == "mean":
            baseline = float(rewards.mean())
        else:
            highest = float(rewards.max())  # taken out, so that nothing overflows
            baseline = highest + self.tau * float(np.log(np.exp((rewards - highest) / self.tau).mean()))
        return (rewards - baseline).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class RecAdvantage(OneGroup):
    """The advantage is reward - mean over the members that are not dropped, and 0 for dropped ones.

    A single member that is not dropped has its reward as advantage.

    Source: Yao et al. 2025, arXiv 2509.24203.
    """

    epsilon: float = 1e-6
    """Small addend to the standard deviation, against division by zero."""
    std_normalize: bool = False
    """True: the advantage is divided by the population's std plus epsilon."""
    drop: str | None = None
    """`balance`: members below the mean are dropped at random until they no longer outnumber the others; None: no
    member is dropped.
    """

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon is {self.epsilon}", field="advantage_fn_args.epsilon", fix="use one above 0")
        if self.drop not in (None, "balance"):
            raise ConfigError(
                f"drop is {self.drop!r}", field="advantage_fn_args.drop", fix="use balance, or leave it out"
            )

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        rewards = group.exact_rewards()
        trained = self._kept(group)
        # numpy's std is that of the population, unlike the unbiased one of grpo.
        mean, std = (float(rewards[trained].mean()), float(rewards[trained].std())) if trained.sum() > 1 else (0.0, 1.0)
        centred = (rewards - mean) / (std + self.epsilon if self.std_normalize else 1.0)
        return np.where(trained, centred, 0.0).astype(np.float32)

    def _kept(self, group: ClosedGroup) -> Any:
        """Returns True for members that are not dropped: a random choice, always the same for a group  # [G] bool"""
        import numpy as np

        rewards = group.exact_rewards()
        below = rewards < rewards.mean()
        # Members below the mean are dropped only as far as they outnumber the others: the two sides are to be equal.
        surplus = int(below.sum()) - int((~below).sum())
        trained = np.ones(len(rewards), np.bool_)
        if self.drop == "balance" and surplus > 0:
            # Draws lie in [0, 1), so that those not below the mean, at 2, are dropped last, that is never.
            order = np.where(below, group.draws(), 2.0).argsort()
            trained[order[:surplus]] = False
        return trained


@dataclass(frozen=True, kw_only=True)
class PassAtKAdvantage(OneGroup):
    """The advantage is (1 - R) / s for a right member, (1 - R - C(w - 1, k - 1) / C(n - 1, k - 1)) / s for a wrong one.

    w of the n members are wrong, R = 1 - C(w, k) / C(n, k) is the chance that one of k is right, and s = sqrt(R (1 -
    R)) + epsilon. This is the mean of grpo's advantage over all sets of k that contain the member, where the reward of
    a set is 1 if any of its members is right; no set is sampled. k = 1 is grpo with the population's std. A group of
    fewer than k members is one set.

    Source: Chen et al. 2025, Pass@k Training, arXiv 2508.10751, its analytical derivation, and the authors' code.
    """

    k: int = 4
    """Size of the sets."""
    right_above: float = 0.5
    """Answers with a reward above this value are right."""
    epsilon: float = 1e-6
    """Small addend to the standard deviation, against division by zero."""

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise ConfigError(
                f"k is {self.k!r}", field="advantage_fn_args.k", fix="use a whole number of 1 to repeat_times"
            )
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon is {self.epsilon}", field="advantage_fn_args.epsilon", fix="use one above 0")

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        right = group.exact_rewards() > self.right_above
        count = len(right)
        wrong = int(np.count_nonzero(~right))
        if not count:
            return np.zeros(0, np.float32)
        k = min(self.k, count)
        # Whole numbers until the division: C(n, k) of a large group is beyond float64, and math.comb is exact.
        passed = 1 - math.comb(wrong, k) / math.comb(count, k)
        spread = math.sqrt(passed * (1 - passed)) + self.epsilon
        # max(): with no wrong member the term is not used, but C(-1, k - 1) would raise.
        of_wrong = 1 - passed - math.comb(max(wrong - 1, 0), k - 1) / math.comb(count - 1, k - 1)
        return np.where(right, (1 - passed) / spread, of_wrong / spread).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class GrpoPassKAdvantage(OneGroup):
    """The advantage of the best member is its reward minus the second best, in unbiased standard deviations of the
    group; that of all others is 0.

    It estimates the gradient of the best of a group's rewards. Members that share the highest reward, and the single
    member of a group of one, have 0.
    Source: Tang et al. 2025, Optimizing Language Models for Inference Time Objectives using RL, arXiv 2503.19595; as
    in verl.
    """

    epsilon: float = 1e-6
    """Small addend to the standard deviation, against division by zero."""
    std_cal_level: str = "group"
    """`group`: the difference is divided by the group's standard deviation; `none`: it is not divided."""

    def __post_init__(self) -> None:
        check_common(self.epsilon, None, self.std_cal_level, ("group", "none"))

    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantages, computed in float64 and rounded once at the end  # [G]"""
        import numpy as np

        rewards = group.exact_rewards()
        advantages = np.zeros(len(rewards))
        if len(rewards) > 1:
            best = int(rewards.argmax())
            second = float(np.delete(rewards, best).max())
            scale = 1.0 if self.std_cal_level == "none" else moments(rewards)[1] + self.epsilon
            advantages[best] = (rewards[best] - second) / scale
        return advantages.astype(np.float32)
