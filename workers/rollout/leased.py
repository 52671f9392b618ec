"""`LeasedRollouts`: the rollouts of a task lease, from their ids and seeds to their final events. `HandOver`: these
events, passed to the outbox under their leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
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
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.datasets.task import TaskSource
from rftd.workers.hosts.membership import Membership
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.rollout_log import RolloutLog
from rftd.workers.rollout.rollout_traces import RolloutTraces, created, end_cancelled, end_rollout, with_spans
from rftd.workers.rollout.rollouts import RolloutOutcome, Rollouts
from rftd.workers.workflows.attempt import RolloutRequest
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import extracted_note


class HandOverEvents(Protocol):
    """An async function receiving final events of a lease's rollouts, one or several at a time."""

    def __call__(
        self, events: Sequence[ExperienceProduced | RolloutFailed], traceparents: Sequence[str | None] = (), /
    ) -> Awaitable[None]:
        """Takes events, with a trace header for each (None: not traced); without `traceparents`, none is traced."""
        ...


def rollout_ids(group: UUID, rollouts: Iterable[int]) -> list[UUID]:
    """Returns the ids of a group's rollouts by number; the ids of their experiences are derived from them."""
    return derive_each(group, "rollout", numbers=rollouts)


def experience_ids(rollouts: Iterable[UUID]) -> list[UUID]:
    """Returns the experience id of each rollout; a repeated rollout has an equal one, and is recognised as
    a duplicate.
    """
    return derive_from_each(rollouts, "experience")


def sampling_seeds(experiment_seed: int, lease: TaskLeased, rollouts: Iterable[int]) -> list[UUID]:
    """Returns the ids seeding the sampling of each rollout, derived from seed and dataset position, not from the
    group's id.
    """
    return derive_each(NAMESPACE, "sampling", experiment_seed, lease.stage, lease.sequence, numbers=rollouts)


class LeasedRollouts:
    """Runs the rollouts of one taskset's leases, and turns finished and failed ones into events."""

    def __init__(
        self,
        rollouts: Rollouts,
        *,
        artifacts: ArtifactStore,
        seed: int,
        greedy_rollouts: int = 0,
        sampling: SamplingSpec | None = None,
        default_sampling: SamplingSpec | None = None,
        trained: bool = True,
    ) -> None:
        """The first `greedy_rollouts` of each group are sampled greedily, and not trained; the others follow
        `sampling`.

        `default_sampling` (None: `sampling`) is what a trainer assumes for tokens without recorded settings. In a
        `trained` stage, a rollout from which no trainer could learn fails.
        """
        self._rollouts = rollouts
        self._artifacts = artifacts
        self._seed = seed
        self._trained = trained
        self._greedy_rollouts = greedy_rollouts
        self._drawn = sampling if default_sampling is not None and sampling != default_sampling else None
        """Sampling settings recorded with each experience, because they differ from those assumed by the trainer; None
        if equal.
        """
        self._greedy = msgspec.structs.replace(sampling or SamplingSpec(), temperature=0.0)
        """Sampling settings of the first `greedy_rollouts` of each group: those of the taskset, at temperature 0."""

    @property
    def running(self) -> int:
        """Number of attempts with slots, and with the device if shared."""
        return self._rollouts.running

    async def run(self, lease: TaskLeased, taskset: TaskSource, hand_over: HandOverEvents, *, row: int) -> None:
        """Runs the lease's rollouts, and passes the final event of each to `hand_over` as it ends.

        `row` is the task's row within `taskset`; the lease itself counts rows over all tasksets of the stage.
        """

        async def ended(outcomes: Sequence[RolloutOutcome]) -> None:
            experiences = experience_ids([outcome.request.id for outcome in outcomes])
            events: list[ExperienceProduced | RolloutFailed] = []
            for experience, outcome in zip(experiences, outcomes, strict=True):
                number = outcome.request.number
                if isinstance(outcome.result, RolloutResult):
                    finished = outcome.result if self._drawn is None else with_sampling(outcome.result, self._drawn)
                    event = experience_of(experience, lease, number, finished, outcome.duration_s)
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
            with untraced():  # each rollout has a span of its own
                await self._rollouts.run(requests, taskset, ended, timeout_s=lease.timeout_s)
        finally:
            end_cancelled(requests)

    def _requests(self, lease: TaskLeased, row: int) -> list[RolloutRequest]:
        """Returns one request per rollout: a group of n is n requests, a single rollout a group of one."""
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


class HandOver:
    """Turns ended rollouts of leases into drafts for the outbox, with log lines and spans."""

    def __init__(
        self,
        member: Membership,
        outbox: Outbox,
        rollout_log: RolloutLog,
        *,
        check_lives: Callable[[], None],
        traces: RolloutTraces | None,
    ) -> None:
        """`check_lives` raises WorkError if an engine will never answer again."""
        self._member = member
        self._outbox = outbox
        self._rollout_log = rollout_log
        self._check_lives = check_lives
        self._traces = traces

    def of(self, lease: TaskLeased) -> HandOverEvents:
        """Returns the receiver of a lease's events, to be called as its rollouts end."""
        return partial(self._hand_over, lease, 0 if self._traces is None else self._member.clock.now_ns())

    async def _hand_over(
        self,
        lease: TaskLeased,
        began_ns: int,
        events: Sequence[ExperienceProduced | RolloutFailed],
        traceparents: Sequence[str | None] = (),
    ) -> None:
        """Puts the events of a lease into the outbox. Raises WorkError if a rollout failed with its engine."""
        if any(isinstance(event, RolloutFailed) for event in events):
            # Not the rollouts' fault: the leases end with this process, and are given out again.
            self._check_lives()
            if self._traces is not None and not traceparents:
                self._traces.failed(lease, events, began_ns)
        partition = partition_of(topics.EXPERIENCES, lease.group)
        # Random event ids: an id derived from the log could be taken beforehand by a foreign record.
        drafts = [
            self._member.writer.draft(
                event,
                experiment=self._member.experiment,
                partition=partition,
                causation=lease.lease,
                correlation=lease.group,
                traceparent=traceparents[number] if traceparents else None,
            )
            for number, event in enumerate(events)
        ]
        self._member.pulse.rollouts_total += len(drafts)
        self._rollout_log.ended(events)
        await self._outbox.put(drafts)


def with_sampling(rollout: RolloutResult, default: SamplingSpec) -> RolloutResult:
    """Returns the rollout with recorded sampling settings for every token; tokens without any get `default`."""
    response = len(rollout.tokens) - rollout.prompt_tokens
    end = SamplingSpan(response, response, default.temperature)
    spans: list[SamplingSpan] = []
    position = 0
    for recorded in (*rollout.sampling, end):
        if position < recorded.start:
            spans.append(SamplingSpan(position, recorded.start, default.temperature, default.top_p, default.top_k))
        if recorded is not end:
            spans.append(recorded)
        position = recorded.end
    return msgspec.structs.replace(rollout, sampling=tuple(spans))


async def stored(event: ExperienceProduced, artifacts: ArtifactStore) -> ExperienceProduced:
    """Returns the event; arrays too large for a record are first written as artifacts, and referred to."""
    if _fits(event):
        return event
    # On a thread each, because a write of megabytes would block every other rollout of the process.
    references = {name: await asyncio.to_thread(array.stored, artifacts.put) for name, array in event.arrays.items()}
    return msgspec.structs.replace(event, **references)


def _fits(event: ExperienceProduced) -> bool:
    """False if the arrays are too large to travel in the event."""
    size_bytes = sum([len(array.data) for array in event.arrays.values()])
    return size_bytes <= limits.INLINE_ARRAY_SIZE_BYTES


def failure_of(lease: TaskLeased, rollout: int, error: RftdError) -> RolloutFailed:
    """Returns the event of a rollout that failed for good, with code and reason of the error."""
    return RolloutFailed(
        group=lease.group,
        rollout=rollout,
        stage=lease.stage,
        lease=lease.lease,
        code=error.code,
        reason=explain(error),
    )


def experience_of(
    id: UUID, lease: TaskLeased, rollout: int, finished: RolloutResult, duration_s: float
) -> ExperienceProduced:
    """Returns the event of a finished rollout, with tokens, masks, log-probabilities and reward."""
    return ExperienceProduced(
        experience=id,
        group=lease.group,
        rollout=rollout,
        stage=lease.stage,
        lease=lease.lease,
        tokens=Array.of(finished.tokens, "u4"),
        prompt_tokens=finished.prompt_tokens,
        loss_mask=Array.of(finished.loss_mask, "u1"),
        logprobs=Array.of(finished.logprobs, "f4"),
        processed_logprobs=None if finished.processed_logprobs is None else Array.of(finished.processed_logprobs, "f4"),
        spans=finished.spans,
        reward=finished.reward,
        priority=finished.priority,
        metrics=finished.metrics,
        extracted=extracted_note(finished.extracted),
        finish=finished.finish,
        duration_s=duration_s,
        steps=finished.steps,
        sampling=finished.sampling,
        auxiliary=finished.auxiliary,
        turns=finished.turns,
    )
