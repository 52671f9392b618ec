"""`Attempt`: rollouts that begin at one moment, from their requests to the seam through which their results come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import msgspec

from rftd.ops.errors import RolloutError
from rftd.ops.tracing.tracer import TraceSpan
from rftd.streams.spec.spec import SamplingSpec
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.orphans import Orphans
from rftd.workers.workflows.result import RolloutResult


class RolloutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout to be made: a row of a taskset, and the ids that its tokens follow from."""

    number: int
    """The caller's name for it: its index in its group, or the row of an evaluation."""
    id: UUID
    """The ids of its requests to the engine derive from it."""
    seed: UUID
    """Its sampling seeds derive from it."""
    row: int
    epoch: int = 0
    sampling: SamplingSpec | None = None
    """Replaces the taskset's settings; None keeps them."""
    trained: bool = False
    """A result that no trainer could learn from counts as an error."""
    span: TraceSpan | None = None
    """The rollout's span, which whoever asked for it ends; None: it is not traced."""


class TaskRollout(msgspec.Struct, frozen=True):
    """A requested rollout with the task that its row holds."""

    request: RolloutRequest
    task: Task


Ended: TypeAlias = tuple[int, RolloutResult | RolloutError]
"""The place of a rollout in its attempt, and its result or its error."""


class Attempt(Protocol):
    """Rollouts on their way. Nothing begins before the first `some`, so that an attempt may be dropped unused."""

    @property
    def rollouts(self) -> Sequence[TaskRollout]:
        """The rollouts that are attempted; results name them by their place in this sequence."""
        ...

    async def some(self) -> Sequence[Ended]:
        """The rollouts that have ended since the last call, at least one of those that are left.

        The caller bounds the time by cancelling. An exception concerns every rollout that has not ended.
        """
        ...

    async def leave(self) -> Collection[int]:
        """Cancels the rollouts that have not ended. Returns the places of those that go on all the same."""
        ...


class OneByOne:
    """Implements `Attempt` with an asyncio task for each rollout, for workflows that take turns or wait for others."""

    def __init__(
        self,
        rollouts: Sequence[TaskRollout],
        run: Callable[[TaskRollout], Coroutine[Any, Any, RolloutResult]],
        orphans: Orphans,
    ) -> None:
        """`run` makes one rollout and raises RolloutError, and nothing else."""
        self.rollouts = rollouts
        self._run = run
        self._orphans = orphans
        self._begun = False
        self._running: dict[asyncio.Task[RolloutResult], int] = {}
        self._done: list[tuple[int, asyncio.Task[RolloutResult]]] = []
        self._more: asyncio.Future[None] | None = None

    async def some(self) -> Sequence[Ended]:
        loop = asyncio.get_running_loop()
        if not self._begun:
            self._begun = True
            for place, rollout in enumerate(self.rollouts):
                # Not of a TaskGroup: that could never be left while a workflow ignores its cancellation.
                task = loop.create_task(self._run(rollout))
                self._running[task] = place
                task.add_done_callback(self._note)
        if not self._done and self._running:
            self._more = loop.create_future()
            await self._more
        done = self._done
        self._done = []
        return [(place, self._outcome(place, task)) for place, task in done]

    async def leave(self) -> Collection[int]:
        running = self._running
        # What ends from now on is too late: `_note` finds it no more.
        self._running = {}
        for _, task in self._done:
            if not task.cancelled():
                # Nobody asks for it any more, and asyncio would log its exception when the task is collected.
                task.exception()
        deaf = await self._orphans.end({task: self.rollouts[place].task.where for task, place in running.items()})
        return {running[task] for task in deaf}

    def _note(self, task: asyncio.Task[RolloutResult]) -> None:
        place = self._running.pop(task, None)
        if place is None:
            return
        self._done.append((place, task))
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _outcome(self, place: int, task: asyncio.Task[RolloutResult]) -> RolloutResult | RolloutError:
        if task.cancelled():
            # Nobody here cancels a task that is still listened to.
            return RolloutError(
                "the workflow cancelled itself",
                where=self.rollouts[place].task.where,
                fix="correct the workflow, or this row",
            )
        try:
            return task.result()
        except RolloutError as error:
            return error
