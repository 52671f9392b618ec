"""`grpo`: the reward relative to its group, in standard deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rftd.ops.errors import ConfigError
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField
from rftd.workers.learning.algorithms.advantages.moments import moments, spread_out, std_of_all

if TYPE_CHECKING:
    # Imported where arrays are made: a check of an experiment needs the arguments alone.
    import numpy as np
    from numpy.typing import NDArray

STD_LEVELS = ("group", "batch", "none")
"""The values of `std_cal_level`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrpoAdvantage:
    """The advantage is (reward - mean) / (std + epsilon), with the unbiased std; a group of one has mean 0 and std 1.

    Source: Shao et al. 2024, DeepSeekMath, arXiv 2402.03300, section 4.1.2.
    """

    epsilon: float = 1e-6
    """Small addend to the standard deviation, against division by zero."""
    std_threshold: float | None = None
    """Groups with a std at or below it are uninformative: not planned, and without advantages. None: every group is
    informative.
    """
    std_cal_level: str = "group"
    """`group`: division by the group's std; `batch`: by the std of all rewards of the batch's groups, with the group's
    mean; `none`: no division (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783).
    """
    rank_penalty: float | None = None
    """The reward of the member of rank k, of n, is multiplied by 1 - rank_penalty * k / n; the rank is the number of
    members with a lower mean log-probability, so unlikely answers are worth more. None: no penalty.
    """
    duplicate_experiences: bool = False
    """True: an informative group of the batch is trained again in place of each uninformative one."""
    max_response_tokens: int | None = None
    """Responses within `overlong_buffer` tokens of this limit lose reward: overlong_penalty times the share of the
    buffer that they fill. Whether a group is informative is decided without this loss.
    """
    overlong_buffer: int | None = None
    """Number of tokens below the limit in which responses lose reward; None: no loss."""
    overlong_penalty: float = 1.0
    """Maximum reward lost by an overlong response. Source: DAPO, Yu et al. 2025, arXiv 2503.14476, equation 13."""
    mask_truncated: bool = False
    """True: responses that ended at their length limit are not trained; their rewards count in their group (DAPO)."""

    greedy_rollouts: ClassVar[int] = 0
    """No greedy rollout is needed."""

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
        check_overlong(self.max_response_tokens, self.overlong_buffer, self.overlong_penalty)

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """The fields needed of the members: mean log-probabilities for a rank penalty, lengths for an overlong
        penalty.
        """
        fields: set[MemberField] = set()
        if self.rank_penalty:
            fields.add("mean_logprobs")
        if self.overlong_buffer:
            fields.add("lengths")
        return frozenset(fields)

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Returns the advantages, computed in float64 and rounded once; zeros for an uninformative group  # each [G]"""
        import numpy as np

        shaped = [self._rank_penalised(group) for group in groups]
        rewards = [each - self._overlong_losses(group) for group, each in zip(groups, shaped, strict=True)]
        # One std for the batch makes this level depend on which groups share a batch: a replay plans the same ones.
        whole = std_of_all(rewards) if self.std_cal_level == "batch" else None
        return [
            self._normalised(each, whole) if spread_out(judged, self.std_threshold) else np.zeros(len(each), np.float32)
            for judged, each in zip(shaped, rewards, strict=True)
        ]

    def informative(self, group: ClosedGroup) -> bool:
        """False if the std is at or below `std_threshold`; a group of one has no std, and is uninformative too.

        True if unknown before the experiences are read, and if `duplicate_experiences` replaces the group.
        """
        # Asked in the planner too, which knows what the close of a group tells and nothing of its members.
        if self.duplicate_experiences or (self.rank_penalty and group.mean_logprobs is None):
            return True
        return spread_out(self._rank_penalised(group), self.std_threshold)

    def substitutes(self, groups: Sequence[ClosedGroup]) -> Mapping[int, int]:
        """Maps each uninformative group to a random informative one; empty without `duplicate_experiences`, or if no
        group is informative.
        """
        import numpy as np

        if not self.duplicate_experiences:
            return {}
        good = {
            index for index, group in enumerate(groups) if spread_out(self._rank_penalised(group), self.std_threshold)
        }
        # By seed, not by index: neither the order of groups in the plan nor a resumed process changes the choice.
        places = sorted(good, key=lambda index: groups[index].seed)
        return {
            index: places[int(np.random.default_rng(group.seed).integers(len(places)))]
            for index, group in enumerate(groups)
            if places and index not in good
        }

    def trains(self, finish: str) -> bool:
        """False for responses that ended at their length limit, with `mask_truncated`."""
        return not (self.mask_truncated and finish == "length")

    def _normalised(self, rewards: NDArray[np.float64], whole: float | None) -> Floats:
        """Returns rewards less their mean, divided by the std of the group, or of the batch (`whole`); undivided with
        `std_cal_level: none`  # [G]
        """
        mean, std = moments(rewards)
        if self.std_cal_level == "none":
            return (rewards - mean).astype("float32")
        return ((rewards - mean) / ((std if whole is None else whole) + self.epsilon)).astype("float32")

    def _rank_penalised(self, group: ClosedGroup) -> NDArray[np.float64]:
        """Returns the rewards after the penalty for likely answers  # [G]"""
        rewards = group.exact_rewards()
        if not self.rank_penalty or group.mean_logprobs is None:
            return rewards
        # All pairs at once: groups have tens of members, not thousands. Equal members have equal ranks.
        ranks = (group.mean_logprobs[:, None] > group.mean_logprobs[None, :]).sum(1).astype("float64")
        shaped: NDArray[np.float64] = rewards * (1 - self.rank_penalty * ranks / len(rewards))
        return shaped

    def _overlong_losses(self, group: ClosedGroup) -> NDArray[np.float64]:
        """Returns the reward lost by each response for its length  # [G]"""
        import numpy as np

        if not self.overlong_buffer or self.max_response_tokens is None or group.lengths is None:
            return np.zeros(len(group.rewards))
        beyond = group.lengths.astype(np.float64) - (self.max_response_tokens - self.overlong_buffer)
        return self.overlong_penalty * np.clip(beyond / self.overlong_buffer, 0.0, 1.0)


def check_overlong(most: int | None, buffer: int | None, penalty: float) -> None:
    """Raises ConfigError if the buffer exceeds the limit `most`, if only one of both is set, or for a negative
    penalty.
    """
    if (most is None) != (buffer is None):
        missing = "max_response_tokens" if most is None else "overlong_buffer"
        raise ConfigError(
            f"a penalty of overlong responses needs max_response_tokens and overlong_buffer; {missing} is missing",
            field=f"advantage_fn_args.{missing}",
            fix="give both, for example 20480 and 4096, or none",
        )
    if most is not None and buffer is not None and not 0 < buffer <= most:
        raise ConfigError(
            f"overlong_buffer is {buffer} of max_response_tokens {most}",
            field="advantage_fn_args.overlong_buffer",
            fix="use 1 token or more, and at most the limit",
        )
    if not penalty >= 0:
        raise ConfigError(
            f"overlong_penalty is {penalty}", field="advantage_fn_args.overlong_penalty", fix="use 0 or more"
        )


def check_common(epsilon: float, std_threshold: float | None, level: str, levels: Sequence[str]) -> None:
    """Raises ConfigError for invalid arguments common to all group-relative advantages."""
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
