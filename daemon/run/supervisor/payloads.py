"""`PayloadKeeper`: drops payloads of experiences by rule, and returns the space."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final
from uuid import UUID

from rftd.daemon.run.registry import Entry
from rftd.daemon.serve.keeping import Keep, Keeping
from rftd.ops.clock import Clock
from rftd.ops.errors import LogFullError, UnreachableError
from rftd.ops.logs import Logger
from rftd.streams.events.batch import BatchPlanned, GroupRef
from rftd.streams.events.experiment import PayloadsDropped
from rftd.streams.events.task import GroupClosed
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.log import topics
from rftd.streams.log.codec import Writer, decode_as
from rftd.streams.log.log import EventLog
from rftd.streams.log.payloads import Dropped, PayloadLog, drop_all, drop_at, give_back
from rftd.streams.log.shared_history import plan_offsets
from rftd.streams.log.topics import Partition, partition_of

# A look costs a read of the registry; space freed a few seconds later is early enough.
EVERY_S: Final = 10.0
"""Seconds between two passes over the experiments."""
STEPS_PER_REWRITE: Final = 64
"""Maximum number of batches dropped per experiment and pass, so that other experiments have their turn."""


class PayloadKeeper:
    """Drops payloads of experiences by the keeping rules, periodically; does nothing on a log that cannot drop
    payloads.

    Each drop is followed by an event; after a crash in between, the drop is repeated without effect.
    """

    def __init__(
        self,
        log: EventLog,
        experiments: Callable[[], Mapping[UUID, Entry]],
        state_of: Callable[[UUID], RunState | None],
        writer: Writer,
        *,
        keeping: Keeping,
        clock: Clock,
        logger: Logger,
    ) -> None:
        """`state_of` returns the folded state of an experiment running here, else None."""
        self.rewriting: Final = asyncio.Lock()
        """Lock for rewriting records of the log: dropping payloads, or restoring them."""
        self.log_excess_bytes = 0
        """Bytes of the log above its size limit after the last pass, when nothing more may be dropped; 0 within the
        limit.
        """
        self._log = log
        self._experiments = experiments
        self._state_of = state_of
        self._writer = writer
        self._keeping = keeping
        self._clock = clock
        self._logger = logger

    async def run(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Drops due payloads until cancelled; `refresh` brings the experiments up to date."""
        while isinstance(self._log, PayloadLog):
            try:
                await self.look(refresh)
            except (LogFullError, UnreachableError) as error:
                self._logger.warning("payloads.kept", reason=error.what)
            await self._clock.sleep(EVERY_S)

    async def look(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Drops every payload due at this moment: by its experiment's end, by age, by training, or by the size of the
        log.
        """
        await refresh()
        for id in list(self._experiments()):
            if self._reason(self._experiments()[id]) or self._keeping.payloads is Keep.UNTIL_TRAINED:
                async with self.rewriting:
                    await refresh()  # a restore may have happened during the wait for the lock
                    await self._drop_due(self._experiments()[id])
        if isinstance(self._log, PayloadLog) and self._keeping.drop_payloads_above_bytes is not None:
            await self._shrink(self._log, self._keeping.drop_payloads_above_bytes, refresh)

    async def _shrink(self, log: PayloadLog, limit_bytes: int, refresh: Callable[[], Awaitable[None]]) -> None:
        """Drops the payloads of whole experiments, in the order of their ends, until the log fits."""
        while (excess_bytes := await log.used_bytes() - limit_bytes) > 0:
            async with self.rewriting:
                await refresh()
                entry = min(filter(self._expendable, self._experiments().values()), key=_ended_ns, default=None)
                if entry is None:
                    break
                await self._drop_whole(entry, "size")
        excess_bytes = max(0, excess_bytes)
        if excess_bytes and not self.log_excess_bytes:
            fix = "archive or remove experiments, or allow a larger log: rftd serve --drop-payloads-above"
            self._logger.warning("payloads.log_too_large", excess_bytes=excess_bytes, fix=fix)
        self.log_excess_bytes = excess_bytes

    async def _drop_due(self, entry: Entry) -> None:
        """Drops all payloads of an experiment without further use, or those trained long enough ago."""
        reason = self._reason(entry)
        if reason:
            await self._drop_whole(entry, reason)
            return
        state = self._state_of(entry.id)
        if self._keeping.payloads is Keep.UNTIL_TRAINED and state is not None and not self._shared(entry):
            await self._drop_trained(entry, state)

    async def _drop_whole(self, entry: Entry, reason: str) -> None:
        """Drops all payloads of an experiment, and records `reason`."""
        await self._record_dropped(entry, await drop_all(self._log, entry.id), reason, through_step=0)

    def _reason(self, entry: Entry) -> str:
        """Returns why no payload of the experiment is needed any more; empty if one may be, or if none is left."""
        spine = entry.spine
        if spine.payloads_dropped or spine.status is None:
            return ""
        if spine.kept is not Kept.HERE:
            return spine.kept.value
        if not self._expendable(entry):
            return ""
        if self._keeping.payloads is not Keep.ALWAYS:
            return "ended"
        after_s = self._keeping.drop_payloads_after_s
        return "age" if after_s is not None and _ended_ns(entry) + after_s * 1e9 <= self._clock.now_ns() else ""

    def _expendable(self, entry: Entry) -> bool:
        """True if a rule may drop the payloads: the experiment ran, ended, was not restored, and has no living fork."""
        spine = entry.spine
        if spine.payloads_dropped or not spine.ended or spine.status is Status.REJECTED:
            return False
        restored = spine.archive is not None  # the restore requested the files here
        return spine.kept is Kept.HERE and not restored and not self._shared(entry)

    def _shared(self, entry: Entry) -> bool:
        """True if a living fork may train the experiment's batches again."""
        return any(living_forks(self._experiments(), entry.id))

    async def _drop_trained(self, entry: Entry, state: RunState) -> None:
        """Drops payloads of groups trained up to the last but one checkpoint, where a recovering trainer begins or
        later, except groups to be planned again.

        The newest checkpoint does not count, because it may turn out to be damaged.
        """
        spine = state.spine
        # The folds keep every committed checkpoint by (step, generation); a step saved by two generations counts once,
        # or the last but one would be the newest again.
        saved = sorted({step for step, _ in state.checkpoints})
        base = saved[-2] if len(saved) > 1 else 0
        begun = max(spine.payloads_dropped_through, spine.forked.at_step if spine.forked is not None else 0)
        through = min(base, begun + STEPS_PER_REWRITE)
        if through <= begun:
            return
        older: Mapping[int, int] = {}
        # The fold has only the newest offsets.
        if begun + 1 in spine.batches.steps and begun + 1 not in spine.plan_offsets:
            older = await plan_offsets(self._log, entry.id, first=begun + 1)
        over: dict[UUID, GroupClosed] = {}
        for step in range(begun + 1, through + 1):
            for ref in await self._groups(state, older, step):
                closed = over[ref.group] = await self._closing_of(ref.partition, ref.offset)
                if _in_use(state, closed):
                    del over[ref.group]
        # After the groups are known: experiences planned meanwhile were in use then, or are found here.
        for step in range(base + 1, spine.planned + 1):
            for ref in await self._groups(state, older, step):
                over.pop(ref.group, None)
        members = [member for closed in over.values() if not _in_use(state, closed) for member in closed.members]
        dropped = await drop_at(self._log, [(member.partition, member.offset) for member in members])
        await self._record_dropped(entry, dropped, "trained", through_step=through)

    async def _groups(self, state: RunState, older: Mapping[int, int], step: int) -> tuple[GroupRef, ...]:
        """Returns the groups in the plan of a step; empty if the plan's record is unknown. `older` maps steps no longer
        in the state to offsets of their plans.
        """
        offset = state.spine.plan_offsets.get(step, older.get(step))
        if offset is None:
            return ()
        home = partition_of(topics.EXPERIMENTS, state.experiment)
        records = await self._log.read(home, offset, max_records=1)
        return decode_as(records[0], BatchPlanned).groups if records else ()

    async def _closing_of(self, partition: int, offset: int) -> GroupClosed:
        """Reads the event that closed a group, at this position."""
        records = await self._log.read(Partition(topics.TASKS, partition), offset, max_records=1)
        return decode_as(records[0], GroupClosed)

    async def _record_dropped(self, entry: Entry, dropped: Dropped, reason: str, *, through_step: int) -> None:
        # Space first, event second: a crash in between drops the same payloads again, without effect; an event without
        # the drop would prevent it.
        """Gives the space of dropped payloads back to the file system, and records the drop as an event."""
        await give_back(self._log)
        event = PayloadsDropped(
            reason=reason,
            records=dropped.records + dropped.before,
            size_bytes=dropped.size_bytes,
            through_step=through_step,
        )
        await self._log.append([self._writer.draft(event, experiment=entry.id)])
        self._logger.info(
            "payloads.dropped", name=entry.name, reason=reason, records=dropped.records, size_bytes=dropped.size_bytes
        )


def _ended_ns(entry: Entry) -> int:
    """Returns the time of an ended experiment's end, in nanoseconds since 1970."""
    return entry.spine.status_ns


def _in_use(state: RunState, closed: GroupClosed) -> bool:
    """True if a member may still be planned: advantages are computed from the whole group, so all stay or go."""
    replay_buffer = state.replay_buffer
    return any(
        member.experience in replay_buffer.waiting or member.experience in replay_buffer.cooling
        for member in closed.members
    )


def living_forks(experiments: Mapping[UUID, Entry], ancestor: UUID) -> Iterator[Entry]:
    """Returns living forks of the experiment, and living forks of its forks."""
    return (
        experiment
        for experiment in experiments.values()
        if not experiment.spine.ended and _descends(experiments, experiment, ancestor)
    )


def _descends(experiments: Mapping[UUID, Entry], experiment: Entry, ancestor: UUID) -> bool:
    """True for a fork of `ancestor`, direct or through other forks: its history reaches back that far."""
    at = experiment.spine.forked
    while at is not None and at.parent != ancestor:
        above = experiments.get(at.parent)
        at = above.spine.forked if above is not None else None
    return at is not None
