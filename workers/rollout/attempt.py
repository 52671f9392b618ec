"""One rollout: its workflow under a time-out, with retries, into the event that it ends with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import lru_cache, partial
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import DataError, RftdError, RolloutError, RolloutTimeoutError
from rftd.ops.ids import NAMESPACE, derive_each, derive_from_each
from rftd.storage.artifacts import ArtifactStore
from rftd.streams.arrays import Array
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed
from rftd.streams.events.task import TaskLeased
from rftd.streams.spec import RolloutSpec, SamplingSpec
from rftd.workers.membership import explain
from rftd.workers.rollout.orphans import OrphanedError, Orphans
from rftd.workers.rollout.threads import on_own_thread
from rftd.workers.rollout.workflows.result import RolloutResult
from rftd.workers.rollout.workflows.runner import WorkflowRunner
from rftd.workers.rollout.workflows.together import Together
from rftd.workers.tasksets.task import Task
from rftd.workers.tasksets.taskset import Taskset


def rollout_ids(group: UUID, rollouts: Iterable[int]) -> list[UUID]:
    """The ids of a group's rollouts; the experience's id derives from it."""
    return derive_each(group, "rollout", numbers=rollouts)


def experience_ids(rollouts: Iterable[UUID]) -> list[UUID]:
    """The ids of the experiences that rollouts leave, and of their events: a repeated rollout is a duplicate."""
    return derive_from_each(rollouts, "experience")


def sampling_seeds(experiment_seed: int, lease: TaskLeased, rollouts: Iterable[int]) -> list[UUID]:
    """What sampling derives from: the experiment's seed and each rollout's place, not its ids (rule 14)."""
    return derive_each(NAMESPACE, "sampling", experiment_seed, lease.stage, lease.sequence, numbers=rollouts)


class Attempts:
    """Runs rollouts of one stage's taskset."""

    def __init__(
        self,
        runner: WorkflowRunner,
        spec: RolloutSpec,
        *,
        artifacts: ArtifactStore,
        seed: int,
        clock: Clock,
        orphans: Orphans,
        greedy_rollouts: int = 0,
        sampling: SamplingSpec | None = None,
        trained: bool = True,
    ) -> None:
        """The first `greedy_rollouts` of each group are drawn greedily, else by `sampling`.

        Of what is `trained`, a rollout that no trainer could learn from fails.
        """
        self._runner = runner
        self._orphans = orphans
        self._artifacts = artifacts
        self._spec = spec
        self._seed = seed
        self._trained = trained
        self._clock = clock
        self._greedy_rollouts = greedy_rollouts
        self._greedy = msgspec.structs.replace(sampling or SamplingSpec(), temperature=0.0)
        # The rollouts of a group are of one task; the digest makes a changed file another one.
        self._task = lru_cache(maxsize=64)(_read_task)

    async def run(self, lease: TaskLeased, rollout: int, taskset: Taskset) -> ExperienceProduced | RolloutFailed:
        """The rollout's end: an experience, or after `max_retry_times` more attempts its last error.

        A row that is no task fails its rollouts, not the explorer. An attempt that cannot be ended is the last.
        """
        began_s = self._clock.monotonic_s()
        try:
            task = self._task(taskset, taskset.digest, lease.row, lease.epoch)
        except DataError as failure:
            return _failed(lease, rollout, failure)
        error: RftdError = RolloutError("no attempt was made")
        (id,) = rollout_ids(lease.group, [rollout])
        (experience,) = experience_ids([id])
        (seed,) = sampling_seeds(self._seed, lease, [rollout])
        for _ in range(self._spec.max_retry_times + 1):
            try:
                sampling = self._greedy if rollout < self._greedy_rollouts else None
                work = partial(self._runner.run, task, id, seed=seed, sampling=sampling)
                result = await self._orphans.bounded(
                    on_own_thread(work) if self._spec.threads_each else work(),
                    lease.timeout_s or self._spec.max_timeout_s,
                    where=task.where,
                )
                if sampling is None and self._trained:
                    _check_trainable(result, task.where)
            except OrphanedError as failure:
                return _failed(lease, rollout, failure)
            except RftdError as failure:
                error = failure
            else:
                event = _experience(experience, lease, rollout, result, self._clock.monotonic_s() - began_s)
                return event if _fits(event) else await self._stored(event)
        return _failed(lease, rollout, error)

    def together(self, lease: TaskLeased, taskset: Taskset) -> Together | None:
        """For the lease's rollouts as one piece of work; None where each has to be `run` by itself."""
        if self._spec.threads_each or self._greedy_rollouts:
            return None
        try:
            return self._runner.together(self._task(taskset, taskset.digest, lease.row, lease.epoch))
        except DataError:
            return None  # each rollout will say why

    async def run_each(
        self, lease: TaskLeased, rollouts: Sequence[int], together: Together
    ) -> AsyncGenerator[Sequence[ExperienceProduced | RolloutFailed], None]:
        """The same as `run` of each, as they end, those of one moment at once; those that failed are tried again."""
        began_s = self._clock.monotonic_s()
        loop = asyncio.get_running_loop()
        timeout_s = lease.timeout_s or self._spec.max_timeout_s
        ids = rollout_ids(lease.group, rollouts)
        known = dict(zip(rollouts, zip(ids, experience_ids(ids), strict=True), strict=True))
        errors: dict[int, RftdError] = dict.fromkeys(rollouts, RolloutError("no attempt was made"))
        for _ in range(self._spec.max_retry_times + 1):
            trying = [rollout for rollout in rollouts if rollout in errors]
            errors = {}
            seeds = sampling_seeds(self._seed, lease, trying)
            left = set(trying)
            deadline_s = loop.time() + timeout_s
            async with together.asked([(known[r][0], seed) for r, seed in zip(trying, seeds, strict=True)]) as attempt:
                while left:
                    try:
                        async with asyncio.timeout_at(deadline_s):
                            some = await attempt.some()
                    except TimeoutError:
                        break
                    assert some, "an engine that answers fewer than it was asked"
                    duration_s = self._clock.monotonic_s() - began_s
                    events: list[ExperienceProduced | RolloutFailed] = []
                    for number, result in some:
                        rollout = trying[number]
                        left.discard(rollout)
                        if isinstance(result, RolloutResult) and self._trained:
                            result = _trainable(result, attempt.where)
                        if isinstance(result, RolloutResult):
                            event = _experience(known[rollout][1], lease, rollout, result, duration_s)
                            events.append(event if _fits(event) else await self._stored(event))
                        else:
                            errors[rollout] = result
                    if events:
                        yield events
            for rollout in left:
                text = f"no result within {timeout_s:g} s"
                errors[rollout] = RolloutTimeoutError(text, where=attempt.where, fix="raise explorer.max_timeout")
            if not errors:
                return
        yield [_failed(lease, rollout, error) for rollout, error in errors.items()]

    async def _stored(self, event: ExperienceProduced) -> ExperienceProduced:
        """The event with its arrays by reference: bytes first, then the event."""
        put = self._artifacts.put
        stored = {name: await asyncio.to_thread(array.stored, put) for name, array in event.arrays.items()}
        return msgspec.structs.replace(event, **stored)


def _trainable(result: RolloutResult, where: str) -> RolloutResult | RolloutError:
    """The result, or why it cannot be trained."""
    try:
        _check_trainable(result, where)
    except RolloutError as error:
        return error
    return result


def _check_trainable(result: RolloutResult, where: str) -> None:
    try:
        result.check_trainable()
    except RolloutError as error:
        error.where = where
        raise


def _fits(event: ExperienceProduced) -> bool:
    """False if its arrays are too large to travel in it."""
    size_bytes = sum(len(array.data) for array in event.arrays.values())
    return size_bytes <= limits.INLINE_ARRAY_SIZE_BYTES


def _read_task(taskset: Taskset, digest: str, row: int, epoch: int) -> Task:
    assert taskset.digest == digest
    return taskset.task(row, epoch)


def _failed(lease: TaskLeased, rollout: int, error: RftdError) -> RolloutFailed:
    return RolloutFailed(
        group=lease.group,
        rollout=rollout,
        stage=lease.stage,
        lease=lease.lease,
        code=error.code,
        reason=explain(error),
    )


def _experience(
    id: UUID, lease: TaskLeased, rollout: int, result: RolloutResult, duration_s: float
) -> ExperienceProduced:
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
    )
