"""`Rollouts`: the one way in which rollouts are made, be it one, a group, or the rows of an evaluation.

A caller brings requests and takes outcomes. In between lie the places that bound how many run at once, the attempts
with their one time-out, the retries, and the one place where an error decides between another attempt and the end.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import lru_cache, partial
from typing import TypeAlias

import msgspec

from rftd.ops.clock import Clock
from rftd.ops.errors import DataError, RftdError, RolloutError, RolloutTimeoutError
from rftd.ops.tracing import conventions as names
from rftd.streams.spec.spec import RolloutSpec
from rftd.workers.datasets.task import Task, TaskSource
from rftd.workers.workflows.attempt import Attempt, Ended, OneByOne, RolloutRequest, TaskRollout
from rftd.workers.workflows.orphans import OrphanedError, Orphans
from rftd.workers.workflows.result import RolloutResult, named
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.threads import on_own_thread


class RolloutOutcome(msgspec.Struct, frozen=True):
    """The end of a rollout, after as many attempts as it was allowed."""

    request: RolloutRequest
    result: RolloutResult | RftdError
    duration_s: float
    """The time since it had a place, with the attempts that failed."""


HandOver: TypeAlias = Callable[[Sequence[RolloutOutcome]], Awaitable[None]]
"""Takes outcomes as they come. It may wait, as for room in the outbox: no time-out runs meanwhile."""


class RolloutPlaces:
    """The places that bound how many rollouts run at once."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._freed = asyncio.Event()

    async def take(self, most: int) -> int:
        """Waits for a free place, and takes those beside it, `most` in all. Returns how many."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()
        count = min(most, self.free)
        self.free -= count
        return count

    def give_back(self, count: int) -> None:
        """Frees places that were taken."""
        self.free += count
        self._freed.set()


class Rollouts:
    """Makes rollouts of one taskset's workflows with one engine."""

    def __init__(
        self,
        runner: WorkflowRunner,
        spec: RolloutSpec,
        *,
        places: RolloutPlaces,
        clock: Clock,
        orphans: Orphans,
        device: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        on_retry: Callable[[RftdError], None] | None = None,
    ) -> None:
        """`device` is held by each attempt, where others want it too; `on_retry` is told why a rollout has another."""
        self._spec = spec
        self._clock = clock
        self.running = 0
        """Attempts that have places and the device."""
        self._runner = runner
        self._places = places
        self._orphans = orphans
        self._device = device
        self._on_retry = on_retry
        self._door = asyncio.Lock()
        # The rollouts of a group are of one task; the digest makes a changed file another one.
        self._task = lru_cache(maxsize=64)(_read_task)

    async def run(
        self, requests: Sequence[RolloutRequest], taskset: TaskSource, hand_over: HandOver, *, timeout_s: float = 0.0
    ) -> None:
        """Makes the rollouts and hands each outcome over once; returns when all are over.

        Nothing that goes wrong with a rollout is raised: its outcome holds the error. Cancelled, it cancels what runs.
        `timeout_s` bounds an attempt; 0 stands for `max_timeout_s`.
        """
        left = requests
        made = _Made(self._places, hand_over, timeout_s or self._spec.max_timeout_s)
        try:
            async with made.attempts:
                # First come, first served: a group that has begun gets all its places before the next one gets any, so
                # that it closes earlier.
                async with self._door:
                    while left:
                        count = await made.take_places(len(left))
                        if count == len(left):
                            break
                        made.attempts.create_task(self._part(left[:count], taskset, made))
                        left = left[count:]
                if left:
                    # Not as a task, for most groups have one part, and a task costs as much as a rollout's accounting.
                    await self._part(left, taskset, made)
        finally:
            # Here and not in the parts: one that is cancelled before its first step runs no `finally` of its own.
            made.free(made.held)

    async def _part(self, requests: Sequence[RolloutRequest], taskset: TaskSource, made: _Made) -> None:
        """Rollouts that got their places at one moment."""
        ready: list[TaskRollout] = []
        digest = taskset.digest
        for request in requests:
            try:
                task = self._task(taskset, digest, request.row, request.epoch)
            except DataError as error:
                # A row that is no task fails its rollouts, not the process; no attempt would mend it.
                await made.end([RolloutOutcome(request, error, 0.0)])
            else:
                ready.append(TaskRollout(request, task))
                if request.span is not None:
                    request.span.name = f"{names.ROLLOUT} {task.workflow}"
                    request.span.attributes[names.GEN_AI_WORKFLOW] = task.workflow
        first = self._attempts(ready)
        for attempt in first[1:]:
            made.attempts.create_task(self._attempt(attempt, made, self._spec.max_retry_times))
        for attempt in first[:1]:
            await self._attempt(attempt, made, self._spec.max_retry_times)

    def _attempts(self, rollouts: Sequence[TaskRollout]) -> list[Attempt]:
        """The attempts that make the rollouts: together where that is cheaper, else one by one."""
        together: list[TaskRollout] = []
        alone: list[TaskRollout] = []
        task: Task | None = None
        once = False
        for rollout in rollouts:
            if rollout.task is not task:
                task = rollout.task
                # A workflow on a thread of its own may block, and together there is but one thread.
                once = not self._spec.threads_each and self._runner.asks_once(task)
            (together if once else alone).append(rollout)
        attempts: list[Attempt] = []
        if len(together) == 1:
            alone += together  # alone is cheaper by a fifth then
        elif together:
            attempts.append(self._runner.together(together))
        if alone:
            attempts.append(OneByOne(alone, self._alone, self._orphans))
        return attempts

    async def _alone(self, rollout: TaskRollout) -> RolloutResult:
        request = rollout.request
        work = partial(self._runner.run, rollout.task, request.id, seed=request.seed, sampling=request.sampling)
        if request.span is None:
            return await (on_own_thread(work) if self._spec.threads_each else work())
        with request.span.active():
            return await (on_own_thread(work) if self._spec.threads_each else work())

    async def _attempt(self, attempt: Attempt, made: _Made, retries: int, began_s: float | None = None) -> None:
        """Sees one attempt to its end, and begins the next one for each rollout that failed.

        `began_s` is the moment at which the first attempt began; None: this is the first.
        """
        left = dict(enumerate(attempt.rollouts))
        async with self._device():
            self.running += 1
            if began_s is None:
                began_s = self._clock.monotonic_s()
            deadline_s = asyncio.get_running_loop().time() + made.timeout_s
            try:
                while left:
                    some = await _next_ended(attempt, left, deadline_s)
                    if not some:
                        break
                    await self._settle(some, left, made, retries, began_s)
            finally:
                self.running -= 1
                # Before a retry begins, so that the engine has the slots back.
                deaf = await attempt.leave()
        if left:
            grace_s = self._orphans.grace_s
            late = [
                (place, _late(rollout.task, made.timeout_s, deaf_after_s=grace_s if place in deaf else None))
                for place, rollout in left.items()
            ]
            await self._settle(late, left, made, retries, began_s)

    async def _settle(
        self, some: Sequence[Ended], left: dict[int, TaskRollout], made: _Made, retries: int, began_s: float
    ) -> None:
        """Hands over what is final, and tries what failed again: at once, not when the slowest of the attempt ended."""
        duration_s = self._clock.monotonic_s() - began_s
        final: list[RolloutOutcome] = []
        again: list[TaskRollout] = []
        for place, result in some:
            rollout = left.pop(place)
            if rollout.request.trained and isinstance(result, RolloutResult):
                result = _trainable(result, rollout.task)
            # To try an orphan again would make one more of it.
            if isinstance(result, RolloutResult) or retries < 1 or isinstance(result, OrphanedError):
                final.append(RolloutOutcome(rollout.request, result, duration_s))
            else:
                again.append(rollout)
                if self._on_retry is not None:
                    self._on_retry(result)
        for attempt in self._attempts(again) if again else ():
            made.attempts.create_task(self._attempt(attempt, made, retries - 1, began_s))
        if final:
            await made.end(final)


class _Made:
    """The rollouts of one call: their attempts, the places that they hold, and who takes their outcomes."""

    def __init__(self, places: RolloutPlaces, hand_over: HandOver, timeout_s: float) -> None:
        """`timeout_s` bounds an attempt."""
        self.attempts = asyncio.TaskGroup()
        self.timeout_s = timeout_s
        self.held = 0
        self._places = places
        self._hand_over = hand_over

    async def take_places(self, most: int) -> int:
        """Waits for a place, and takes those that are free beside it, `most` in all. Returns how many."""
        count = await self._places.take(most)
        self.held += count
        return count

    async def end(self, outcomes: Sequence[RolloutOutcome]) -> None:
        """Frees the places, then hands over: another rollout may run while the outbox is full."""
        self.free(len(outcomes))
        await self._hand_over(outcomes)

    def free(self, count: int) -> None:
        """Gives places back."""
        self.held -= count
        self._places.give_back(count)


async def _next_ended(attempt: Attempt, left: dict[int, TaskRollout], deadline_s: float) -> Sequence[Ended]:
    """The rollouts that ended next, as results or errors; none once the time is over."""
    bound = asyncio.timeout_at(deadline_s)
    error: Exception
    try:
        async with bound:
            some = await attempt.some()
        if some:
            return some
        error = RolloutError(
            f"the rollout engine left {len(left)} requests unanswered", fix="this is a defect of the rollout engine"
        )
    except Exception as failure:
        if bound.expired():
            return ()
        error = failure
    # A copy for each, because an error is named by its row.
    return [(place, named(copy.copy(error), rollout.task)) for place, rollout in left.items()]


def _late(task: Task, timeout_s: float, *, deaf_after_s: float | None) -> RolloutTimeoutError:
    text = f"no result within {timeout_s:g} s"
    if deaf_after_s is None:
        return RolloutTimeoutError(text, where=task.where, fix="raise explorer.max_timeout")
    return OrphanedError(
        f"{text}, and it goes on {deaf_after_s:g} s after it was cancelled",
        where=task.where,
        fix="let the workflow pass CancelledError on",
    )


def _trainable(result: RolloutResult, task: Task) -> RolloutResult | RolloutError:
    """The result, or the error that no trainer could learn from it."""
    try:
        result.check_trainable()
    except RolloutError as error:
        return named(error, task)
    return result


def _read_task(taskset: TaskSource, digest: str, row: int, epoch: int) -> Task:
    assert taskset.digest == digest
    return taskset.task(row, epoch)
