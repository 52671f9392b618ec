"""`HandOver`: the events of leases on their way to the outbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rftd.streams.events.experience import ExperienceProduced, RolloutFailed
from rftd.streams.events.task import TaskLeased
from rftd.streams.log import topics
from rftd.streams.log.topics import partition_of
from rftd.workers.hosts.membership import Membership
from rftd.workers.rollout.leased import HandOverEvents
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.rollout_log import RolloutLog
from rftd.workers.rollout.rollout_traces import RolloutTraces


class HandOver:
    """Drafts what rollouts end with, and puts it into the outbox."""

    def __init__(
        self,
        member: Membership,
        outbox: Outbox,
        told: RolloutLog,
        *,
        check_lives: Callable[[], None],
        traces: RolloutTraces | None,
    ) -> None:
        """`check_lives` raises WorkError if the engines will answer no more."""
        self._member = member
        self._outbox = outbox
        self._told = told
        self._check_lives = check_lives
        self._traces = traces

    def of(self, lease: TaskLeased) -> HandOverEvents:
        """Takes the events of a lease that begins now."""
        return partial(self._take, lease, 0 if self._traces is None else self._member.clock.now_ns())

    async def _take(
        self,
        lease: TaskLeased,
        began_ns: int,
        events: Sequence[ExperienceProduced | RolloutFailed],
        traceparents: Sequence[str | None] = (),
    ) -> None:
        if any(isinstance(event, RolloutFailed) for event in events):
            # Not the rollouts' fault: their leases end with this process, and are given out again.
            self._check_lives()
            if self._traces is not None and not traceparents:
                self._traces.failed(lease, events, began_ns)
        partition = partition_of(topics.EXPERIENCES, lease.group)
        # Their event ids are random: one that follows from the log could be taken by somebody else's record before.
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
        self._told.ended(events)
        await self._outbox.put(drafts)
