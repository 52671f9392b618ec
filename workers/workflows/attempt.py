"""`Attempt`: rollouts started together, from their requests to the seam delivering their results."""

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
    """A requested rollout: a row of a taskset, and the ids that determine its tokens."""

    number: int
    """The caller's number of the rollout: an index in a group, or a row of an evaluation."""
    id: UUID
    """Id of the rollout; the ids of requests to the engine derive from it."""
    seed: UUID
    """Source of the rollout's sampling seeds."""
    row: int
    """Row of the taskset."""
    epoch: int = 0
    """Pass over the rows, from 0."""
    sampling: SamplingSpec | None = None
    """Replacement for the taskset's settings; None: the taskset's settings."""
    trained: bool = False
    """True: a result with nothing to train on counts as an error."""
    span: TraceSpan | None = None
    """Span of the rollout, ended by the caller; None: the rollout is not traced."""


class TaskRollout(msgspec.Struct, frozen=True):
    """A requested rollout with the task of its row."""

    request: RolloutRequest
    """Request of the rollout, with its ids and its row."""
    task: Task
    """Task in the row of the request."""


Ended: TypeAlias = tuple[int, RolloutResult | RolloutError]
"""Index of a rollout in its attempt, and the rollout's result or error."""


class Attempt(Protocol):
    """Rollouts in progress. Nothing begins before the first `some`, so an attempt may be dropped unused."""

    @property
    def rollouts(self) -> Sequence[TaskRollout]:
        """The attempted rollouts; results name them by their index in this sequence."""
        ...

    async def some(self) -> Sequence[Ended]:
        """Waits for rollouts to end, and returns all that ended since the last call.

        The caller bounds the time by cancelling. An exception concerns every unfinished rollout.
        """
        ...

    async def leave(self) -> Collection[int]:
        """Cancels the unfinished rollouts. Returns the indices of rollouts continuing despite the cancellation."""
        ...


class OneByOne:
    """Implements `Attempt` with an asyncio task for each rollout, for workflows with several turns or waits."""

    def __init__(
        self,
        rollouts: Sequence[TaskRollout],
        run: Callable[[TaskRollout], Coroutine[Any, Any, RolloutResult]],
        orphans: Orphans,
    ) -> None:
        """`run` runs one rollout and raises RolloutError only."""
        self.rollouts = rollouts
        self._run = run
        self._orphans = orphans
        self._begun = False
        """True once the rollouts were started."""
        self._running: dict[asyncio.Task[RolloutResult], int] = {}
        """Index of each running task."""
        self._done: list[tuple[int, asyncio.Task[RolloutResult]]] = []
        """Ended tasks not returned yet, with their index."""
        self._more: asyncio.Future[None] | None = None
        """Set at the next end; None while nobody waits."""

    async def some(self) -> Sequence[Ended]:
        """Waits for ended rollouts, and returns them; see `Attempt.some`."""
        loop = asyncio.get_running_loop()
        if not self._begun:
            self._begun = True
            for index, rollout in enumerate(self.rollouts):
                # No TaskGroup: leaving one would wait for ever for a workflow that ignores its cancellation.
                task = loop.create_task(self._run(rollout))
                self._running[task] = index
                task.add_done_callback(self._note_end)
        if not self._done and self._running:
            self._more = loop.create_future()
            await self._more
        done = self._done
        self._done = []
        return [(index, self._outcome_of(index, task)) for index, task in done]

    async def leave(self) -> Collection[int]:
        """Cancels the unfinished rollouts; see `Attempt.leave`."""
        running = self._running
        # Tasks ending from now on are too late: `_note_end` ignores them.
        self._running = {}
        for _, task in self._done:
            if not task.cancelled():
                # Retrieved here, because asyncio would log the exception of an unobserved task at its collection.
                task.exception()
        deaf = await self._orphans.end({task: self.rollouts[index].task.where for task, index in running.items()})
        return {running[task] for task in deaf}

    def _note_end(self, task: asyncio.Task[RolloutResult]) -> None:
        """Records the end of a task, and wakes the caller of `some`."""
        index = self._running.pop(task, None)
        if index is None:
            return
        self._done.append((index, task))
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    def _outcome_of(self, index: int, task: asyncio.Task[RolloutResult]) -> RolloutResult | RolloutError:
        """Returns the result or the error of an ended rollout."""
        if task.cancelled():
            # Tasks still observed are never cancelled by this class.
            return RolloutError(
                "the workflow cancelled itself",
                where=self.rollouts[index].task.where,
                fix="correct the workflow, or this row",
            )
        try:
            return task.result()
        except RolloutError as error:
            return error
