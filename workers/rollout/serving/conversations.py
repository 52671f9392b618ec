"""`Conversations`: turns leases into experiences of served conversations, and offers committed rows for leases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self, TypeAlias
from uuid import UUID

from rftd.ops import limits
from rftd.ops.errors import RftdError
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.files.served_history import FILE, difference_of
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed
from rftd.streams.events.task import TaskLeased, TasksOffered
from rftd.streams.log import topics
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.generation.endpoint.call_error import SERVER, CallError
from rftd.workers.generation.endpoint.turn_record import RecordedTurn, TurnRecord
from rftd.workers.hosts.membership import Membership
from rftd.workers.rollout.leased import (
    HandOverEvents,
    experience_ids,
    experience_of,
    failure_of,
    rollout_ids,
    stored,
)
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.serving.history import BY_IDS, Committed, CommittedRun, History, lost
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.runner import joined

Promised: TypeAlias = Callable[[], TasksOffered | None]
"""A function returning the stage's largest offer of rows in the log; None without one."""
Offer: TypeAlias = Callable[[TasksOffered], Awaitable[bool]]
"""An async function appending an offer to the log; False if the append takes too long, and then still continues."""
_FORGET_ROWS: Final = 100
"""Number of rows after which old rows are deleted again."""


class Conversations:
    """The rollouts of a serving stage: conversations with clients, finished and scored before they are leased."""

    def __init__(
        self,
        history: History,
        *,
        stage: int,
        max_model_len: int,
        artifacts: ArtifactStore,
        offer: Offer,
        promised: Promised,
    ) -> None:
        """Large arrays go to `artifacts`; `offer` appends an offer to the log; `promised` returns the largest offer
        read from the log.
        """
        self.history = history
        self._promised = promised
        self._offered: TasksOffered | None = None
        """Largest offer appended by this process."""
        self._stage = stage
        self._max_model_len = max_model_len
        self._artifacts = artifacts
        self._offer = offer

    @classmethod
    def open(cls, spec: ExperimentSpec, index: int, member: Membership, outbox: Outbox, *, promised: Promised) -> Self:
        """Opens the conversations of the stage with this index. Blocks.

        Raises DiskFullError, and DataError for a history that is damaged, missing, or not the one promised in the log.
        """
        stage = spec.stages[index]
        assert stage.taskset is not None
        folder = Path(stage.taskset.path)
        partition = partition_of(topics.EXPERIENCES, member.experiment)

        async def offer(offered: TasksOffered) -> bool:
            draft = member.writer.draft(offered, experiment=member.experiment, partition=partition)
            await outbox.put([draft])
            return await outbox.drained(limits.DRAIN_TIMEOUT_S)

        return cls(
            _open_history(folder, promised(), member.ids.new),
            stage=index,
            max_model_len=stage.model.max_model_len,
            artifacts=ArtifactStore(Path(spec.job_dir) / "artifacts"),
            offer=offer,
            promised=promised,
        )

    async def check(self) -> None:
        """Raises DataError unless the history has every row offered in the log; to be called before anything is
        acknowledged.
        """
        await asyncio.to_thread(lambda: self.history.check(self._offer_in_log))

    @property
    def _offer_in_log(self) -> TasksOffered | None:
        """Returns the largest offer known to be in the log; offers of this process are read again a little later."""
        offers = [offer for offer in (self._promised(), self._offered) if offer is not None]
        return max(offers, key=lambda offer: offer.rows, default=None)

    async def run(self, lease: TaskLeased, hand_over: HandOverEvents) -> None:
        """Passes the experiences of the lease's row to `hand_over`; every lease of the row gives equal ones.

        Raises DataError if the history is not the one promised in the log.
        """
        await self.check()
        ids = rollout_ids(lease.group, lease.rollouts)
        events = [
            await self._end_of_run(lease, number, experience)
            for number, experience in zip(lease.rollouts, experience_ids(ids), strict=True)
        ]
        await hand_over(events)
        if lease.row % _FORGET_ROWS == 0 and lease.row > limits.SERVED_ROWS:
            await asyncio.to_thread(self.history.forget, lease.row - limits.SERVED_ROWS)

    async def commit(self, group_size: int) -> Committed:
        """Commits runs with feedback as rows, and offers the new rows to the dispatcher.

        Raises DataError if the history is not the one promised in the log, CallError (503) if the log accepts no offer
        now.
        """
        await self.check()
        committed = await asyncio.to_thread(self.history.commit, group_size)
        # Acknowledged once the log remembers it: before that, an older history put in its place would go unnoticed.
        if not await self._offer_rows():
            message = "it is committed, but the log is unreachable; retry"
            raise CallError(503, message, kind=SERVER, reason="log_unreachable")
        return committed

    async def offer_again(self) -> None:
        """Offers the committed rows once more at the start, because a process may have died between commit
        and offer.
        """
        await self._offer_rows()

    async def _offer_rows(self) -> bool:
        """Brings an offer of all committed rows into the log; False after too long a wait."""
        offered = await asyncio.to_thread(self.history.offer, self._stage)
        in_log = self._offer_in_log
        if offered is None or (in_log is not None and offered.rows <= in_log.rows):
            return True
        if not await self._offer(offered):
            return False
        self._offered = offered
        return True

    async def _end_of_run(self, lease: TaskLeased, number: int, experience: UUID) -> ExperienceProduced | RolloutFailed:
        """Returns the experience of a committed run, or the failure of an unusable one."""
        try:
            run = await asyncio.to_thread(self.history.run, lease.row, number)
            # The model saw each sequence alone: a conversation with branches may have more tokens in all than the model
            # takes.
            rollout = await asyncio.to_thread(result_of, run, max_model_len=self._max_model_len)
        except RftdError as error:
            return failure_of(lease, number, error)
        return await stored(experience_of(experience, lease, number, rollout, 0.0), self._artifacts)


def _open_history(folder: Path, promised: TasksOffered | None, new_id: Callable[[], UUID]) -> History:
    """Returns the history in a folder. Raises DataError for a history other than the promised one."""
    path = folder / FILE
    # Before a new history is begun in its place.
    if promised is not None and not path.exists() and (lacks := difference_of(path, promised)):
        raise lost(path, lacks)
    history = History(folder, new_id)
    try:
        history.check(promised)
    except BaseException:
        history.close()  # its log of writes must not lie beside the copy that somebody puts there
        raise
    return history


def result_of(run: CommittedRun, *, max_model_len: int) -> RolloutResult:
    """Returns a run as a rollout: an answer continuing an earlier one extends its token sequence.

    Raises RolloutError for a sequence longer than `max_model_len`, or for answers that do not fit together.
    """
    record = TurnRecord()
    turns: dict[str, RecordedTurn] = {}
    for answer in run.answers:
        by_ids = answer.parent == BY_IDS
        parent = record.longest_prefix(answer.response.prompt) if by_ids else turns.get(answer.parent)
        turn = turns[answer.id] = RecordedTurn(answer.response, parent)
        record.add(turn, answer.key)
    sequences = record.results(RewardResult(value=run.reward))
    for sequence in sequences:
        sequence.check(max_model_len)
    return joined(sequences)
