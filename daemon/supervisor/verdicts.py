"""`Verdicts`: dead letters that are retried or dropped, each once, whoever asks and under whichever key."""

from __future__ import annotations

from functools import partial
from typing import Protocol
from uuid import UUID

from rftd.daemon.dlq.desk import Desk
from rftd.daemon.dlq.letter import Dead, DeadLetterReceipt, State
from rftd.daemon.dlq.verdicts import dropped_id
from rftd.daemon.supervisor.inbox import Request
from rftd.daemon.supervisor.orders import Orders, order_of
from rftd.daemon.supervisor.run import Run
from rftd.ops.ids import derive
from rftd.streams.envelope import Position
from rftd.streams.folds.commands import KeyUse
from rftd.streams.folds.failed_tasks import FailedTask


class RunUnderWay(Protocol):
    """The run of an experiment. Raises ConflictError, with this fix, if none is under way here."""

    def __call__(self, experiment: UUID, *, fix: str, whose: str = "the") -> Run: ...


class Verdicts:
    """Verdicts on dead letters, carried out as orders."""

    def __init__(self, desk: Desk, orders: Orders, run_under_way: RunUnderWay) -> None:
        self._desk = desk
        self._orders = orders
        self._run_under_way = run_under_way

    async def retry(self, dead: Dead, *, by: str, reason: str, key: UUID) -> DeadLetterReceipt:
        """See `Operations.retry_dead_letter`."""
        # From the group, not from the caller's key: two people who retry one task under two keys give it out once.
        base = derive(dead.task.group, "retried") if dead.task is not None else None
        experiment = dead.task.experiment if dead.task is not None else None
        order = order_of(key, "retry", experiment, dead.letter.id, by, reason, base=base)

        async def give_out(task: FailedTask) -> KeyUse:
            async def write(id: UUID) -> Position:
                run = self._run_under_way(task.experiment, fix="fork it, or submit a new one", whose="its")
                request = Request(id, key, partial(self._orders.check, order))
                return await run.retry(task, request, by=by, reason=reason)

            return await self._orders.carry_out(order, write)

        await self._orders.check(order)
        return await self._desk.retry(dead, give_out, by=by)

    async def drop(self, dead: Dead, *, by: str, reason: str, key: UUID) -> DeadLetterReceipt:
        """See `Operations.drop_dead_letter`."""
        experiment = dead.task.experiment if dead.task is not None else None
        id = dead.letter.id
        order = order_of(key, "drop", experiment, id, by, reason, base=dropped_id(dead.place))
        await self._orders.check(order)
        if dead.letter.state is State.DROPPED:
            return DeadLetterReceipt(id=id, state=State.DROPPED, already=True, position=None)
        use = await self._orders.carry_out(order, lambda _: self._desk.drop(dead, by=by, reason=reason, key=key))
        return DeadLetterReceipt(id=id, state=State.DROPPED, already=False, position=str(use.position))
