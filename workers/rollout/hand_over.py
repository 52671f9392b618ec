"""`HandOver`: passes the events of finished rollouts to the outbox, under their leases."""

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
