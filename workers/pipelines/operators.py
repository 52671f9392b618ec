"""The built-in operators of the experience pipeline, by the guide's names and with its arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Annotated, Final, Literal

import msgspec

from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError
from rftd.workers.pipelines.operator import PipelineExperience

Experiences = Sequence[PipelineExperience]
"""Experiences of one group."""
Processed = tuple[Experiences, Mapping[str, float]]
"""Kept experiences, and figures by name."""

FILTERED: Final = "filtered_count"
"""Figure of every filter: the number of removed experiences of a group."""


class RewardFilter:
    """`reward_filter`: keeps experiences with a reward of at least `threshold`."""

    def __init__(self, threshold: float = 0.0) -> None:
        """Begins with the threshold."""
        self._threshold = threshold

    def process(self, experiences: Experiences) -> Processed:
        """Returns the experiences with enough reward."""
        return _with_count(
            experiences, [experience for experience in experiences if experience.reward >= self._threshold]
        )


class InvalidRewardFilter:
    """`invalid_reward_filter`: removes experiences with a reward that is not a number."""

    def process(self, experiences: Experiences) -> Processed:
        """Returns the experiences with a finite reward."""
        return _with_count(experiences, [experience for experience in experiences if math.isfinite(experience.reward)])


class RewardStdFilter:
    """`reward_std_filter`: keeps groups with a standard deviation of rewards above `threshold`."""

    def __init__(self, threshold: float = 0.0) -> None:
        """Begins with the threshold."""
        self._threshold = threshold

    def process(self, experiences: Experiences) -> Processed:
        """Returns all experiences of a group, or none; the deviation is the population's."""
        if not experiences:
            return _with_count(experiences, [])
        rewards = [experience.reward for experience in experiences]
        # Equal rewards deviate by a rounding error.
        deviation = pstdev(rewards) if len(set(rewards)) > 1 else 0.0
        passed, figures = _with_count(experiences, experiences if deviation > self._threshold else [])
        return passed, {**figures, "reward_std": deviation}


class DapoDynamicSampling:
    """`dapo_dynamic_sampling`: keeps groups with right and wrong answers (DAPO, arXiv 2503.14476, eq. 11)."""

    def __init__(self, metric_key: str = "accuracy", correct_threshold: float = 0.0) -> None:
        """`metric_key` names the figure compared with `correct_threshold`; the reward, for rollouts without it."""
        self._key = metric_key
        """Name of the figure that tells right answers from wrong ones; the reward, for rollouts without the figure."""
        self._threshold = correct_threshold
        """Bound of the figure: answers are right only if their figure is larger."""

    def process(self, experiences: Experiences) -> Processed:
        """Returns all experiences of a group, or none; groups of fewer than two are removed."""
        right = sum(
            experience.metrics.get(self._key, experience.reward) > self._threshold for experience in experiences
        )
        mixed = len(experiences) > 1 and 0 < right < len(experiences)
        passed, figures = _with_count(experiences, experiences if mixed else [])
        removed = len(experiences) - len(passed)
        return passed, {
            **figures,
            "dropped_all_correct": float(removed if right == len(experiences) else 0),
            "dropped_all_wrong": float(removed if right == 0 else 0),
        }


class MaskResponseTruncated:
    """`mask_response_truncated`: trains no token of answers cut at the limit; their rewards count in their groups."""

    def process(self, experiences: Experiences) -> Processed:
        """Returns the experiences, those with a cut answer masked."""
        masked = [
            msgspec.structs.replace(experience, masked=True) if experience.finish == "length" else experience
            for experience in experiences
        ]
        return masked, {"masked_count": float(sum(experience.masked for experience in masked))}


class PassRateCalculator:
    """`pass_rate_calculator`: the mean reward of each task, as a figure; selectors follow rewards by themselves."""

    def process(self, experiences: Experiences) -> Processed:
        """Returns the experiences unchanged, with the task's mean reward."""
        return experiences, {"pass_rate": fmean(experience.reward for experience in experiences)} if experiences else {}


class RewardShaping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of `reward_shaping_mapper`: the reward, combined with a weighted figure of the rollout."""

    stats_key: str
    """Name of the figure."""
    op_type: Literal["ADD", "SUB", "MUL", "DIV"] = "ADD"
    """Operation on the reward."""
    weight: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 1.0
    """Factor of the figure."""


class RewardShapingMapper:
    """`reward_shaping_mapper`: adds weighted figures of a rollout to its reward, or subtracts, multiplies, divides."""

    def __init__(self, reward_shaping_configs: list[RewardShaping]) -> None:
        """Begins with the steps, applied in order."""
        self._steps = converted(reward_shaping_configs, list[RewardShaping])
        """The steps, in order."""
        if not self._steps:
            raise ConfigError("reward_shaping_configs names no figure", fix="add one, with its stats_key")

    def process(self, experiences: Experiences) -> Processed:
        """Returns the experiences with shaped rewards; a figure that a rollout lacks changes nothing."""
        shaped = [
            msgspec.structs.replace(experience, reward=self._shaped_reward(experience)) for experience in experiences
        ]
        changes = [after.reward - before.reward for before, after in zip(experiences, shaped, strict=True)]
        if not changes:
            return shaped, {}
        return shaped, {
            "reward_diff/mean": fmean(changes),
            "reward_diff/min": min(changes),
            "reward_diff/max": max(changes),
        }

    def _shaped_reward(self, experience: PipelineExperience) -> float:
        """Returns the reward after all steps; a division by zero changes nothing."""
        reward = experience.reward
        for step in self._steps:
            figure = experience.metrics.get(step.stats_key)
            if figure is None:
                continue
            weighted = step.weight * figure
            match step.op_type:
                case "ADD":
                    reward += weighted
                case "SUB":
                    reward -= weighted
                case "MUL":
                    reward *= weighted
                case "DIV":
                    reward = reward / weighted if weighted else reward
        return reward


def _with_count(experiences: Experiences, passed: Experiences) -> Processed:
    """Returns the kept experiences, with the number of removed ones."""
    return passed, {FILTERED: float(len(experiences) - len(passed))}
