"""`Rollouts`: the one path of rollouts, for a single one, a group, or the rows of an evaluation.

A caller brings requests and receives outcomes. In between lie the slots bounding the concurrent rollouts, the attempts
with a common time-out, the retries, and the one decision between another attempt and the end after an error.
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
    """A finished or failed rollout, after the last of its attempts."""

    request: RolloutRequest
    """Request of the rollout, with its number and its row."""
    result: RolloutResult | RftdError
    """The finished rollout, or the error of the last attempt."""
    duration_s: float
    """Seconds since the rollout got a slot, including failed attempts."""


HandOver: TypeAlias = Callable[[Sequence[RolloutOutcome]], Awaitable[None]]
"""An async function receiving outcomes as they come; it may wait, for example for room in the outbox, without a
time-out.
"""


class RolloutPlaces:
    """Slots limiting the number of concurrent rollouts."""

    def __init__(self, count: int) -> None:
        """`count` is the number of slots."""
        self.free = count
        """Number of free slots."""
        self._freed = asyncio.Event()
        """Set when slots are freed."""

    async def take(self, most: int) -> int:
        """Waits for a free slot, takes it and any further free ones, at most `most` in all, and returns
        their number.
        """
        while not self.free:
            self._freed.clear()
            await self._freed.wait()
        count = min(most, self.free)
        self.free -= count
        return count

    def give_back(self, count: int) -> None:
        """Frees `count` taken slots, and wakes callers waiting for one."""
        self.free += count
        self._freed.set()


class Rollouts:
    """Runs rollouts of one taskset on one engine, singly or several per attempt, and repeats failed attempts."""

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
        """`device` is entered by each attempt, for a device shared with the trainer; `on_retry` gets the error before
        each retry.
        """
        self._spec = spec
        self._clock = clock
        self.running = 0
        """Number of attempts with slots, and with the device if shared."""
        self._runner = runner
        self._places = places
        self._orphans = orphans
        self._device = device
        self._on_retry = on_retry
        self._slot_queue = asyncio.Lock()
        """Lock of the one caller that waits for slots, so that callers get all of their slots in order."""
        # The rollouts of a group share a task; the digest makes a changed file another one.
        self._task = lru_cache(maxsize=64)(_read_task)
        """Cached function reading a task, because the rollouts of a group share their task."""

    async def run(
        self, requests: Sequence[RolloutRequest], taskset: TaskSource, hand_over: HandOver, *, timeout_s: float = 0.0
    ) -> None:
        """Runs all requested rollouts, and passes each outcome once to `hand_over`; returns after the last.

        Errors of rollouts become outcomes, and are not raised. Cancelling the call cancels its attempts. `timeout_s`
        limits an attempt in seconds; 0 means the stage's `max_timeout`.
        """
        waiting = requests
        call = _RunCall(self._places, hand_over, timeout_s or self._spec.max_timeout_s)
        try:
            async with call.attempts:
                # First come, first served: a group that has begun gets all slots before the next one gets any, and so
                # closes earlier.
                async with self._slot_queue:
                    while waiting:
                        count = await call.take_places(len(waiting))
                        if count == len(waiting):
                            break
                        call.attempts.create_task(self._run_slots(waiting[:count], taskset, call))
                        waiting = waiting[count:]
                if waiting:
                    # Not as a task, because most groups have one part, and a task costs as much as a rollout's
                    # accounting.
                    await self._run_slots(waiting, taskset, call)
        finally:
            # Here and not in the parts: a part cancelled before the first step runs no `finally`.
            call.free(call.held)

    async def _run_slots(self, requests: Sequence[RolloutRequest], taskset: TaskSource, call: _RunCall) -> None:
        """Runs rollouts that got their slots at the same moment."""
        ready: list[TaskRollout] = []
        digest = taskset.digest
        for request in requests:
            try:
                task = self._task(taskset, digest, request.row, request.epoch)
            except DataError as error:
                # A row that is no task fails the rollouts, not the process; no attempt would mend the row.
                await call.end([RolloutOutcome(request, error, 0.0)])
            else:
                ready.append(TaskRollout(request, task))
                if request.span is not None:
                    request.span.name = f"{names.ROLLOUT} {task.workflow}"
                    request.span.attributes[names.GEN_AI_WORKFLOW] = task.workflow
        first = self._attempts(ready)
        for attempt in first[1:]:
            call.attempts.create_task(self._run_attempt(attempt, call, self._spec.max_retry_times))
        for attempt in first[:1]:
            await self._run_attempt(attempt, call, self._spec.max_retry_times)

    def _attempts(self, rollouts: Sequence[TaskRollout]) -> list[Attempt]:
        """Returns the attempts for the rollouts: together where cheaper, else one by one."""
        together: list[TaskRollout] = []
        alone: list[TaskRollout] = []
        task: Task | None = None
        once = False
        for rollout in rollouts:
            if rollout.task is not task:
                task = rollout.task
                # A workflow on a separate thread may block, and a joint attempt has only one thread.
                once = not self._spec.threads_each and self._runner.asks_once(task)
            (together if once else alone).append(rollout)
        attempts: list[Attempt] = []
        if len(together) == 1:
            alone += together  # one by one is cheaper by a fifth then
        elif together:
            attempts.append(self._runner.together(together))
        if alone:
            attempts.append(OneByOne(alone, self._run_single, self._orphans))
        return attempts

    async def _run_single(self, rollout: TaskRollout) -> RolloutResult:
        """Runs the workflow of a single rollout, on a separate thread if the spec asks for one."""
        request = rollout.request
        work = partial(self._runner.run, rollout.task, request.id, seed=request.seed, sampling=request.sampling)
        if request.span is None:
            return await (on_own_thread(work) if self._spec.threads_each else work())
        with request.span.active():
            return await (on_own_thread(work) if self._spec.threads_each else work())

    async def _run_attempt(self, attempt: Attempt, call: _RunCall, retries: int, began_s: float | None = None) -> None:
        """Runs one attempt to the end, and begins the next one for each failed rollout.

        `began_s` is the start of the first attempt; None for the first attempt itself.
        """
        running = dict(enumerate(attempt.rollouts))
        async with self._device():
            self.running += 1
            if began_s is None:
                began_s = self._clock.monotonic_s()
            deadline_s = asyncio.get_running_loop().time() + call.timeout_s
            try:
                while running:
                    ended = await _next_ended(attempt, running, deadline_s)
                    if not ended:
                        break
                    await self._end_or_retry(ended, running, call, retries, began_s)
            finally:
                self.running -= 1
                # Before a retry begins, so that the engine has the slots back.
                deaf = await attempt.leave()
        if running:
            grace_s = self._orphans.grace_s
            late = [
                (index, _time_out_error(rollout.task, call.timeout_s, deaf_after_s=grace_s if index in deaf else None))
                for index, rollout in running.items()
            ]
            await self._end_or_retry(late, running, call, retries, began_s)

    async def _end_or_retry(
        self, ended: Sequence[Ended], running: dict[int, TaskRollout], call: _RunCall, retries: int, began_s: float
    ) -> None:
        """Hands over final outcomes, and retries failed rollouts: at once, not after the slowest of the attempt."""
        duration_s = self._clock.monotonic_s() - began_s
        final: list[RolloutOutcome] = []
        again: list[TaskRollout] = []
        for index, outcome in ended:
            rollout = running.pop(index)
            if rollout.request.trained and isinstance(outcome, RolloutResult):
                outcome = _checked_rollout(outcome, rollout.task)
            # Retrying an orphan would make one more orphan.
            if isinstance(outcome, RolloutResult) or retries < 1 or isinstance(outcome, OrphanedError):
                final.append(RolloutOutcome(rollout.request, outcome, duration_s))
            else:
                again.append(rollout)
                if self._on_retry is not None:
                    self._on_retry(outcome)
        for attempt in self._attempts(again) if again else ():
            call.attempts.create_task(self._run_attempt(attempt, call, retries - 1, began_s))
        if final:
            await call.end(final)


class _RunCall:
    """The rollouts of one call: attempts, slots, and the receiver of outcomes."""

    def __init__(self, places: RolloutPlaces, hand_over: HandOver, timeout_s: float) -> None:
        """`timeout_s` bounds an attempt."""
        self.attempts = asyncio.TaskGroup()
        """Group of the tasks of attempts, and of parts of the call that got slots early."""
        self.timeout_s = timeout_s
        self.held = 0
        """Number of slots in use by the call."""
        self._places = places
        self._hand_over = hand_over

    async def take_places(self, most: int) -> int:
        """Waits for a slot, and takes further free ones, at most `most` in all. Returns the number taken."""
        count = await self._places.take(most)
        self.held += count
        return count

    async def end(self, outcomes: Sequence[RolloutOutcome]) -> None:
        """Frees the slots, then hands over: another rollout may run while the outbox is full."""
        self.free(len(outcomes))
        await self._hand_over(outcomes)

    def free(self, count: int) -> None:
        """Gives `count` slots back before their rollouts ended."""
        self.held -= count
        self._places.give_back(count)


async def _next_ended(attempt: Attempt, running: dict[int, TaskRollout], deadline_s: float) -> Sequence[Ended]:
    """Returns the rollouts ended next, as finished ones or errors; none once the time is over."""
    bound = asyncio.timeout_at(deadline_s)
    error: Exception
    try:
        async with bound:
            ended = await attempt.some()
        if ended:
            return ended
        error = RolloutError(
            f"the rollout engine left {len(running)} requests unanswered", fix="this is a defect of the rollout engine"
        )
    except Exception as failure:
        if bound.expired():
            return ()
        error = failure
    # A copy for each, because an error is named by the row.
    return [(index, named(copy.copy(error), rollout.task)) for index, rollout in running.items()]


def _time_out_error(task: Task, timeout_s: float, *, deaf_after_s: float | None) -> RolloutTimeoutError:
    """Returns the error of a rollout past its time-out; an orphan's if it ignores its cancellation."""
    text = f"no result within {timeout_s:g} s"
    if deaf_after_s is None:
        return RolloutTimeoutError(text, where=task.where, fix="raise explorer.max_timeout")
    return OrphanedError(
        f"{text}, and it still runs {deaf_after_s:g} s after it was cancelled",
        where=task.where,
        fix="let the workflow pass CancelledError on",
    )


def _checked_rollout(rollout: RolloutResult, task: Task) -> RolloutResult | RolloutError:
    """Returns the rollout, or the error why no trainer could learn from it."""
    try:
        rollout.check_trainable()
    except RolloutError as error:
        return named(error, task)
    return rollout


def _read_task(taskset: TaskSource, digest: str, row: int, epoch: int) -> Task:
    """Returns the task of a row; `digest` is part of the cache's key."""
    assert taskset.digest == digest
    return taskset.task(row, epoch)
