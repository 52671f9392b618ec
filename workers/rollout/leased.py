"""`LeasedRollouts`: the rollouts of a task lease, from their ids and seeds to the events that they end with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RftdError, explain
from rftd.ops.ids import NAMESPACE, derive_each, derive_from_each
from rftd.ops.tracing.tracer import current, untraced
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed, SamplingSpan
from rftd.streams.events.task import TaskLeased
from rftd.streams.log.arrays import Array
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.datasets.task import TaskSource
from rftd.workers.rollout.rollout_traces import created, end_cancelled, end_rollout, with_spans
from rftd.workers.rollout.rollouts import RolloutOutcome, Rollouts
from rftd.workers.workflows.attempt import RolloutRequest
from rftd.workers.workflows.result import RolloutResult


class HandOverEvents(Protocol):
    """Takes the events of a lease as its rollouts end."""

    def __call__(
        self, events: Sequence[ExperienceProduced | RolloutFailed], traceparents: Sequence[str | None] = (), /
    ) -> Awaitable[None]:
        """`traceparents` are those of the events; without them none is traced."""
        ...


def rollout_ids(group: UUID, rollouts: Iterable[int]) -> list[UUID]:
    """The ids of a group's rollouts; the experience's id derives from it."""
    return derive_each(group, "rollout", numbers=rollouts)


def experience_ids(rollouts: Iterable[UUID]) -> list[UUID]:
    """The ids of the experiences that rollouts leave: a repeated rollout leaves a duplicate."""
    return derive_from_each(rollouts, "experience")


def sampling_seeds(experiment_seed: int, lease: TaskLeased, rollouts: Iterable[int]) -> list[UUID]:
    """The ids that sampling derives from: they follow from seed and place, not from the rollouts' ids (rule 14)."""
    return derive_each(NAMESPACE, "sampling", experiment_seed, lease.stage, lease.sequence, numbers=rollouts)


class LeasedRollouts:
    """Makes the rollouts of one stage's leases, as events."""

    def __init__(
        self,
        rollouts: Rollouts,
        *,
        artifacts: ArtifactStore,
        seed: int,
        greedy_rollouts: int = 0,
        sampling: SamplingSpec | None = None,
        usual: SamplingSpec | None = None,
        trained: bool = True,
    ) -> None:
        """The first `greedy_rollouts` of each group are drawn greedily, which cannot be trained, else by `sampling`.

        A trainer takes tokens for drawn by the `usual` settings, None for these, where nothing else is said of them. Of
        a stage that is `trained`, a rollout that no trainer could learn from fails.
        """
        self._rollouts = rollouts
        self._artifacts = artifacts
        self._seed = seed
        self._trained = trained
        self._greedy_rollouts = greedy_rollouts
        self._drawn = sampling if usual is not None and sampling != usual else None
        self._greedy = msgspec.structs.replace(sampling or SamplingSpec(), temperature=0.0)

    @property
    def running(self) -> int:
        """Rollouts that have a place and the device."""
        return self._rollouts.running

    async def run(self, lease: TaskLeased, taskset: TaskSource, hand_over: HandOverEvents, *, row: int) -> None:
        """Makes the lease's rollouts of a row, and hands over the event that each ends with, as they end.

        `row` is the task's in its taskset: the lease counts over all tasksets of the stage.
        """

        async def ended(outcomes: Sequence[RolloutOutcome]) -> None:
            experiences = experience_ids([outcome.request.id for outcome in outcomes])
            events: list[ExperienceProduced | RolloutFailed] = []
            for experience, outcome in zip(experiences, outcomes, strict=True):
                number = outcome.request.number
                if isinstance(outcome.result, RolloutResult):
                    result = outcome.result if self._drawn is None else with_sampling(outcome.result, self._drawn)
                    event = experience_of(experience, lease, number, result, outcome.duration_s)
                    events.append(event if _fits(event) else await stored(event, self._artifacts))
                else:
                    events.append(failure_of(lease, number, outcome.result))
            if span is None:
                await hand_over(events)
                return
            traceparents = [created(outcome, event) for outcome, event in zip(outcomes, events, strict=True)]
            for outcome in outcomes:
                end_rollout(outcome)
            with span.active():
                await hand_over(events, traceparents)

        span = current()
        requests = with_spans(self._requests(lease, row))
        if span is None:
            await self._rollouts.run(requests, taskset, ended, timeout_s=lease.timeout_s)
            return
        try:
            with untraced():  # each has a span of its own
                await self._rollouts.run(requests, taskset, ended, timeout_s=lease.timeout_s)
        finally:
            end_cancelled(requests)

    def _requests(self, lease: TaskLeased, row: int) -> list[RolloutRequest]:
        """A group of n is n requests; a single rollout is a group of one."""
        numbers = lease.rollouts
        ids = rollout_ids(lease.group, numbers)
        seeds = sampling_seeds(self._seed, lease, numbers)
        return [
            RolloutRequest(
                number=number,
                id=id,
                seed=seed,
                row=row,
                epoch=lease.epoch,
                sampling=self._greedy if number < self._greedy_rollouts else None,
                trained=self._trained and number >= self._greedy_rollouts,
            )
            for number, id, seed in zip(numbers, ids, seeds, strict=True)
        ]


def with_sampling(result: RolloutResult, usual: SamplingSpec) -> RolloutResult:
    """The result, which says of every token how it was drawn: by the usual settings where it said nothing."""
    response = len(result.tokens) - result.prompt_tokens
    end = SamplingSpan(response, response, usual.temperature)
    spans: list[SamplingSpan] = []
    place = 0
    for said in (*result.sampling, end):
        if place < said.start:
            spans.append(SamplingSpan(place, said.start, usual.temperature, usual.top_p, usual.top_k))
        if said is not end:
            spans.append(said)
        place = said.end
    return msgspec.structs.replace(result, sampling=tuple(spans))


async def stored(event: ExperienceProduced, artifacts: ArtifactStore) -> ExperienceProduced:
    """The event, with its arrays by reference where they are too large to travel in it: bytes first, then the event."""
    if _fits(event):
        return event
    # On a thread each, for a write of megabytes would hold up every other rollout of the process.
    apart = {name: await asyncio.to_thread(array.stored, artifacts.put) for name, array in event.arrays.items()}
    return msgspec.structs.replace(event, **apart)


def _fits(event: ExperienceProduced) -> bool:
    """False if its arrays are too large to travel in it."""
    size_bytes = sum([len(array.data) for array in event.arrays.values()])
    return size_bytes <= limits.INLINE_ARRAY_SIZE_BYTES


def failure_of(lease: TaskLeased, rollout: int, error: RftdError) -> RolloutFailed:
    """The event that a rollout leaves which came to nothing."""
    return RolloutFailed(
        group=lease.group,
        rollout=rollout,
        stage=lease.stage,
        lease=lease.lease,
        code=error.code,
        reason=explain(error),
    )


def experience_of(
    id: UUID, lease: TaskLeased, rollout: int, result: RolloutResult, duration_s: float
) -> ExperienceProduced:
    """The event that a finished rollout leaves."""
    return ExperienceProduced(
        experience=id,
        group=lease.group,
        rollout=rollout,
        stage=lease.stage,
        lease=lease.lease,
        tokens=Array.of(result.tokens, "u4"),
        prompt_tokens=result.prompt_tokens,
        loss_mask=Array.of(result.loss_mask, "u1"),
        logprobs=Array.of(result.logprobs, "f4"),
        processed_logprobs=None if result.processed_logprobs is None else Array.of(result.processed_logprobs, "f4"),
        spans=result.spans,
        reward=result.reward,
        priority=result.priority,
        metrics=result.metrics,
        finish=result.finish,
        duration_s=duration_s,
        steps=result.steps,
        sampling=result.sampling,
        auxiliary=result.auxiliary,
        turns=result.turns,
    )
