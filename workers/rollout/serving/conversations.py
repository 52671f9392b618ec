"""`Conversations`: a lease of a row becomes the experiences of its conversations, and rows are offered as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self, TypeAlias
from uuid import UUID

from rftd.ops import limits
from rftd.ops.errors import RftdError
from rftd.storage.artifacts import ArtifactStore
from rftd.streams import topics
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed
from rftd.streams.events.task import TaskLeased, TasksOffered
from rftd.streams.spec import ExperimentSpec
from rftd.streams.topics import partition_of
from rftd.workers.membership import Membership
from rftd.workers.rollout.endpoint.turns import RecordedTurn, TurnRecord
from rftd.workers.rollout.leased import (
    HandOverEvents,
    experience_ids,
    experience_of,
    failure_of,
    rollout_ids,
    stored,
)
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.rewards.reward import RewardResult
from rftd.workers.rollout.serving.history import BY_IDS, Committed, CommittedRun, History
from rftd.workers.rollout.workflows.result import RolloutResult
from rftd.workers.rollout.workflows.runner import joined

Offer: TypeAlias = Callable[[TasksOffered], Awaitable[None]]
"""Brings an offer into the log."""
_FORGET_ROWS: Final = 100
"""Rows between two looks for what may be forgotten."""


class Conversations:
    """The rollouts of a stage that serves: they are over before they are leased."""

    def __init__(
        self, history: History, *, stage: int, max_model_len: int, artifacts: ArtifactStore, offer: Offer
    ) -> None:
        self.history = history
        self._stage = stage
        self._max_model_len = max_model_len
        self._artifacts = artifacts
        self._offer = offer

    @classmethod
    def open(cls, spec: ExperimentSpec, index: int, member: Membership, outbox: Outbox) -> Self:
        """Those of the stage of this index. Raises DataError, DiskFullError."""
        stage = spec.stages[index]
        assert stage.taskset is not None
        partition = partition_of(topics.EXPERIENCES, member.experiment)

        async def offer(offered: TasksOffered) -> None:
            draft = member.writer.draft(offered, experiment=member.experiment, partition=partition)
            await outbox.put([draft])

        return cls(
            History(Path(stage.taskset.path)),
            stage=index,
            max_model_len=stage.model.max_model_len,
            artifacts=ArtifactStore(Path(spec.job_dir) / "artifacts"),
            offer=offer,
        )

    async def run(self, lease: TaskLeased, hand_over: HandOverEvents) -> None:
        """Hands over the experience of each run of the lease's row; the same whenever the row is leased."""
        ids = rollout_ids(lease.group, lease.rollouts)
        events = [
            await self._ended(lease, number, experience)
            for number, experience in zip(lease.rollouts, experience_ids(ids), strict=True)
        ]
        await hand_over(events)
        if lease.row % _FORGET_ROWS == 0 and lease.row > limits.SERVED_ROWS:
            await asyncio.to_thread(self.history.forget, lease.row - limits.SERVED_ROWS)

    async def commit(self, group_size: int) -> Committed:
        """Commits what has feedback, and offers it to the dispatcher."""
        committed = await asyncio.to_thread(self.history.commit, group_size)
        if committed.groups:
            await self._offer(TasksOffered(stage=self._stage, rows=committed.rows))
        return committed

    async def offer_again(self) -> None:
        """Offers what was committed: whoever committed it may have died before it said so."""
        rows = await asyncio.to_thread(lambda: self.history.rows)
        if rows:
            await self._offer(TasksOffered(stage=self._stage, rows=rows))

    async def _ended(self, lease: TaskLeased, number: int, experience: UUID) -> ExperienceProduced | RolloutFailed:
        try:
            result = await asyncio.to_thread(lambda: result_of(self.history.run(lease.row, number)))
            result.check(self._max_model_len)
        except RftdError as error:
            return failure_of(lease, number, error)
        return await stored(experience_of(experience, lease, number, result, 0.0), self._artifacts)


def result_of(run: CommittedRun) -> RolloutResult:
    """The sequences of a run. An answer that goes on from one of the same run continues its sequence."""
    record = TurnRecord()
    turns: dict[str, RecordedTurn] = {}
    for answer in run.answers:
        by_ids = answer.parent == BY_IDS
        parent = record.longest_prefix(answer.response.prompt) if by_ids else turns.get(answer.parent)
        turn = turns[answer.id] = RecordedTurn(answer.response, parent)
        record.add(turn, answer.key)
    return joined(record.results(RewardResult(value=run.reward)))
