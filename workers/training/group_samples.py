"""The experiences of a batch as samples with advantages, and the metrics of their groups and rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rftd.streams.events.experience import ExperienceProduced, SamplingSpan, Span
from rftd.streams.events.step import ANSWERS_CUT, ANSWERS_EMPTY, EQUAL_GROUPS, PROMPTS_CUT
from rftd.streams.events.task import GroupClosed
from rftd.streams.figures.reward_parts import part_means, part_sums
from rftd.streams.figures.step_figures import PIPELINE, REWARDS
from rftd.streams.spec.spec import StageSpec
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction, Masking, Substituting
from rftd.workers.learning.algorithms.advantages.by_taskset import ByTaskset
from rftd.workers.learning.algorithms.advantages.group_metrics import group_metrics
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.losses.aggregation import OBSERVED
from rftd.workers.learning.losses.registry import trains_observations
from rftd.workers.training.closed_groups import closed_group, of_rollouts
from rftd.workers.training.run_steps import steps_of


class Constants:
    """Cache of read-only constant arrays for one batch, because versions and advantages repeat."""

    def __init__(self) -> None:
        """Begins with an empty cache."""
        self._arrays: dict[tuple[float, int, DTypeLike], NDArray[Any]] = {}

    def of(self, number: float, length: int, dtype: DTypeLike) -> NDArray[Any]:
        """Returns an array of `length` times the number; read-only, because samples share it."""
        key = (number, length, dtype)
        constant = self._arrays.get(key)
        if constant is None:
            constant = self._arrays[key] = np.full(length, number, dtype)
            # Samples share the array: a write to one sample must fail, and not change all the others.
            constant.setflags(write=False)
        return constant


def run_samples(
    event: ExperienceProduced,
    advantages: Sequence[float],
    default_temperature: float,
    constants: Constants,
    *,
    group: int,
    staleness_versions: int,
    trained: bool,
    observations: bool = False,
) -> Sequence[TrainSample]:
    """Returns the samples of an experience, one for each of its steps, with the advantage of the step or one for all.

    `default_temperature` applies to tokens without a recorded temperature; `group` is the index of the batch's closed
    group; `trained` is False for an experience outside the loss; with `observations`, tokens of the environment are
    trained too.
    """
    length = len(event.loss_mask)
    temperatures = temperatures_of(event.sampling, length, default_temperature, constants)
    versions = versions_of(event.spans, length, constants)
    loss_mask = event.loss_mask.view()
    if observations:
        loss_mask, temperatures = observed(loss_mask, event.logprobs.view(), temperatures)
    if not event.steps:
        return (
            TrainSample(
                tokens=event.tokens.view(),
                prompt_tokens=event.prompt_tokens,
                # Zeros in its place, not fewer samples: a planned experience stays in the batch.
                loss_mask=loss_mask if trained else constants.of(0, length, np.uint8),
                logprobs=event.logprobs.view(),
                advantages=constants.of(advantages[0], length, np.float32),
                versions=versions,
                reward=event.reward,
                group=group,
                temperatures=temperatures,
                staleness_versions=staleness_versions,
            ),
        )
    samples = []
    offset = 0
    for number, arrays in enumerate(steps_of(event)):
        length = len(arrays.loss_mask)
        samples.append(
            TrainSample(
                tokens=arrays.tokens,
                prompt_tokens=arrays.step.prompt_tokens,
                loss_mask=loss_mask[offset : offset + length] if trained else constants.of(0, length, np.uint8),
                logprobs=arrays.logprobs,
                advantages=constants.of(advantages[number if len(advantages) > 1 else 0], length, np.float32),
                versions=None if versions is None else versions[offset : offset + length],
                reward=arrays.step.reward,
                role=arrays.step.role,
                group=group,
                temperatures=temperatures[offset : offset + length],
                staleness_versions=staleness_versions,
            )
        )
        offset += length
    return samples


def observed(
    loss_mask: NDArray[np.uint8], logprobs: NDArray[np.float32], temperatures: NDArray[np.float64]
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Returns mask and temperatures with the environment's tokens marked as observed, at temperature 1  # [R], [R]

    A masked token without a log-probability was drawn by nobody; a masked token with one is the model's own.
    """
    of_environment = (loss_mask == 0) & (logprobs == 0)
    if not of_environment.any():
        return loss_mask, temperatures
    return (
        np.where(of_environment, np.uint8(OBSERVED), loss_mask),
        np.where(of_environment, 1.0, temperatures),
    )


def versions_of(spans: Sequence[Span], length: int, constants: Constants) -> NDArray[np.int64] | None:
    """Returns the weight version that sampled each response token; a token outside all spans was not sampled  # [R]"""
    if not spans:
        return None
    versions = constants.of(spans[0].version, length, np.int64)
    if len(spans) > 1:
        # The shared array is read-only; a response of several weight versions needs a copy.
        versions = versions.copy()
        for span in spans[1:]:
            versions[span.start : span.end] = span.version
    return versions


def temperatures_of(
    sampling: Sequence[SamplingSpan], length: int, default: float, constants: Constants
) -> NDArray[np.float64]:
    """Returns the sampling temperature of each response token; `default` for a token outside all spans  # [R]"""
    if len(sampling) == 1 and (sampling[0].start, sampling[0].end) == (0, length):
        return constants.of(sampling[0].temperature, length, np.float64)
    temperatures = constants.of(default, length, np.float64)
    if sampling:
        temperatures = temperatures.copy()
        for span in sampling:
            temperatures[span.start : span.end] = span.temperature
    return temperatures


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
    # Tested once for each group: a check of a runtime protocol costs more than the remaining work on an experience.
    masking = [_masking_of(function, event.taskset) for event in closed]
    observations = trains_observations(stage.algorithm.policy_loss)
    samples: list[Sequence[TrainSample]] = []
    gap = ProcessedGap()
    counts = RolloutCounts()
    for experience in experiences:
        event = experience.event
        counts.add(event)
        # An untrained rollout stays in the batch with an all-zero mask: the plan names it, and the step accounts for
        # it.
        mask = masking[experience.group]
        trained = event.rollout >= greedy and (mask is None or mask.trains(event.finish))
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


def _masking_of(function: AdvantageFunction, taskset: int) -> Masking | None:
    """Returns the function of a taskset's groups, if it leaves rollouts untrained; else None."""
    own = function.of(taskset) if isinstance(function, ByTaskset) else function
    return own if isinstance(own, Masking) else None


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
