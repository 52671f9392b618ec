"""The experiences of a batch as samples with advantages, and the metrics of their groups and rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np

from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.step import ANSWERS_CUT, ANSWERS_EMPTY, EQUAL_GROUPS, PROMPTS_CUT
from rftd.streams.events.task import GroupClosed
from rftd.streams.figures.reward_parts import part_means, part_sums
from rftd.streams.figures.step_figures import PIPELINE, REWARDS
from rftd.streams.spec.spec import StageSpec
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction, Masking, Substituting
from rftd.workers.learning.algorithms.advantages.group_metrics import group_metrics
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.registry import trains_observations
from rftd.workers.training.closed_groups import closed_group, of_rollouts
from rftd.workers.training.run_samples import Constants, run_samples

_ROLES_SHOWN: Final = 16
"""Maximum number of roles with figures in a step."""


class BatchExperience(NamedTuple):
    """An experience of a batch, with the index of its closed group and its staleness."""

    event: ExperienceProduced
    """The experience with its arrays."""
    group: int
    """Index of the experience's closed group in the batch."""
    staleness_versions: int = 0
    """Age in weight versions, fixed when the batch was planned."""


def group_samples(
    function: AdvantageFunction,
    closed: Sequence[GroupClosed],
    members: Mapping[UUID, ExperienceProduced],
    experiences: Sequence[BatchExperience],
    *,
    stage: StageSpec,
    seed: int,
) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
    """Returns the samples of each experience, with advantages computed over complete groups, and the groups' metrics.

    `members` has the experiences of all groups, and may be empty for a function without `member_fields`.
    """
    greedy = stage.algorithm.greedy_rollouts
    views = [closed_group(event, function.member_fields, members=members, greedy=greedy, seed=seed) for event in closed]
    advantages = [
        of_rollouts(view, group_advantages)
        for view, group_advantages in zip(views, function.advantages(views), strict=True)
    ]
    default_temperature = stage.taskset.sampling.temperature if stage.taskset else 1.0
    constants = Constants()
    # Tested once: a check of a runtime protocol costs more than the remaining work on an experience.
    masking = function if isinstance(function, Masking) else None
    observations = trains_observations(stage.algorithm.policy_loss)
    samples: list[Sequence[TrainSample]] = []
    gap = ProcessedGap()
    counts = RolloutCounts()
    for experience in experiences:
        event = experience.event
        counts.add(event)
        # An untrained rollout stays in the batch with an all-zero mask: the plan names it, and the step accounts for
        # it.
        trained = event.rollout >= greedy and (masking is None or masking.trains(event.finish))
        if trained:
            gap.add(event)
        rollout_advantages = advantages[experience.group][event.rollout]
        samples.append(
            run_samples(
                event,
                rollout_advantages,
                default_temperature,
                constants,
                group=experience.group,
                staleness_versions=experience.staleness_versions,
                trained=trained,
                observations=observations,
            )
        )
    substitutes = function.substitutes(views) if isinstance(function, Substituting) else {}
    if substitutes:
        samples = _with_substitutes(samples, substitutes)
    return samples, group_metrics(function, views) | gap.metrics | counts.metrics(closed)


class ProcessedGap:
    """Gap between processed and raw log-probabilities of a batch's trained tokens, where experiences have both.

    With top-k, top-p and min-p alone the gap is -log of the probability mass kept: a ratio of the whole distribution to
    the processed one would be off by that factor at every token, without any change of policy (TRL issue 6789). Ratios
    therefore use the raw ones, and this metric reports the neglected part.
    """

    def __init__(self) -> None:
        """Begins without tokens."""
        self._gap_sum = 0.0
        self._gap_tokens = 0

    def add(self, event: ExperienceProduced) -> None:
        """Counts a trained experience; one without processed log-probabilities changes nothing."""
        if event.processed_logprobs is None:
            return
        trained = event.loss_mask.view() != 0
        gaps = event.processed_logprobs.view() - event.logprobs.view()
        self._gap_sum += float(np.sum(gaps[trained], dtype=np.float64))
        self._gap_tokens += int(trained.sum())

    @property
    def metrics(self) -> dict[str, float]:
        """Returns the mean over tokens in nats; empty if no token has both."""
        return {"rollout/processed_minus_raw/mean": self._gap_sum / self._gap_tokens} if self._gap_tokens else {}


class RolloutCounts:
    """Metrics over the rollouts of a batch: shares of rollouts and groups with little to learn, and parts
    of rewards.
    """

    def __init__(self) -> None:
        """Begins without rollouts."""
        self._rollouts = 0
        self._counts_by_fault = dict.fromkeys((PROMPTS_CUT, ANSWERS_CUT, ANSWERS_EMPTY), 0)
        """Number of rollouts with a cut prompt, a cut answer or an empty answer, by metric."""
        self._reward_parts: list[dict[str, float]] = []
        self._rewards: list[float] = []
        self._rewards_by_role: dict[str, list[float]] = {}
        """Rewards of the sequences of each role; empty in a batch of single agents."""

    def add(self, event: ExperienceProduced) -> None:
        """Counts a rollout by its finish, and adds the parts of its reward."""
        self._rollouts += 1
        self._reward_parts.append(event.metrics)
        self._rewards.append(event.reward)
        for step in event.steps:
            if step.role:
                self._rewards_by_role.setdefault(step.role, []).append(step.reward)
        if event.finish == "prompt_truncated":
            self._counts_by_fault[PROMPTS_CUT] += 1
        elif event.finish == "length":
            self._counts_by_fault[ANSWERS_CUT] += 1
        # An answer that ends by itself contains its end token.
        elif len(event.loss_mask) <= 1:
            self._counts_by_fault[ANSWERS_EMPTY] += 1

    def metrics(self, closed: Sequence[GroupClosed]) -> dict[str, float]:
        """Returns the fractions, including groups with equal rewards, the rewards' range and quantiles, and the parts'
        means; empty without rollouts.
        """
        if not self._rollouts:
            return {}
        shares = {name: count / self._rollouts for name, count in self._counts_by_fault.items()}
        pipelines = [group.pipeline_metrics for group in closed]
        figures = {
            f"{PIPELINE}/{name}": sum(metrics.get(name, 0.0) for metrics in pipelines) / len(pipelines)
            for name in sorted({name for metrics in pipelines for name in metrics})
        }
        equal = equal_groups([[member.reward for member in group.trained_members] for group in closed])
        spread = reward_spread(self._rewards)
        roles = role_figures(self._rewards_by_role)
        return (
            {EQUAL_GROUPS: equal}
            | figures
            | shares
            | spread
            | roles
            | part_means(part_sums(self._reward_parts), self._rollouts)
        )


def role_figures(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the number of sequences and the mean reward of each role; of the first 16 by name."""
    figures: dict[str, float] = {}
    for role in sorted(rewards)[:_ROLES_SHOWN]:
        figures[f"roles/{role}/sequences"] = float(len(rewards[role]))
        figures[f"roles/{role}/reward"] = sum(rewards[role]) / len(rewards[role])
    return figures


def reward_spread(rewards: Sequence[float]) -> dict[str, float]:
    """Returns minimum, maximum and nearest-rank 10th, 50th and 90th percentile of the rewards of a batch."""
    ordered = sorted(rewards)
    last = len(ordered) - 1
    ranks = {"min": 0.0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
    return {f"{REWARDS}/{name}": float(ordered[round(share * last)]) for name, share in ranks.items()}


def equal_groups(rewards: Sequence[Sequence[float]]) -> float:
    """Returns the fraction of groups with equal rewards throughout; for single rollouts 1 if all are equal, else 0."""
    equal = [len(set(of_group)) == 1 for of_group in rewards if len(of_group) > 1]
    if equal:
        return sum(equal) / len(equal)
    return float(len({reward for of_group in rewards for reward in of_group}) == 1)


def _with_substitutes(
    runs: Sequence[Sequence[TrainSample]], substitutes: Mapping[int, int]
) -> list[Sequence[TrainSample]]:
    """Returns the samples of each run; runs of a substituted group are replaced by the substitute's, in turn."""
    by_group: dict[int, list[Sequence[TrainSample]]] = {}
    for run in runs:
        by_group.setdefault(run[0].group, []).append(run)
    # In turn: the substitute's runs may be fewer than the replaced ones.
    substitute_runs = {
        group: cycle(by_group[substitute]) for group, substitute in substitutes.items() if substitute in by_group
    }
    return [next(substitute_runs[run[0].group]) if run[0].group in substitute_runs else run for run in runs]
