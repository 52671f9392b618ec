"""`Orders`: commands by their meaning. Each takes effect once, and its answer is what the log says of it.

key, verb, digest of the body ─► event id ─► append ─► read back ─► in effect: the answer
                                    ▲                     │
                                    └── attempt n + 1 ◄───┴─ void: a fence came before it

`Verdicts` are such orders about dead letters: retried or dropped, each once, whoever asks and under whichever key.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from rftd.daemon.run.dlq.desk import Desk
from rftd.daemon.run.dlq.letter import Dead, DeadLetterReceipt, State
from rftd.daemon.run.dlq.verdicts import dropped_id
from rftd.daemon.run.supervisor.inbox import Request
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.clock import Clock, iso
from rftd.ops.errors import FencedError, ReusedKeyError, UnreachableError
from rftd.ops.ids import derive
from rftd.streams.folds.commands import Commands
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.key_use import KeyUse
from rftd.streams.log.envelope import Position

AGAIN_S: Final = 0.2
"""The pause between two attempts while a run changes hands."""
PATIENCE_S: Final = 15.0
"""The longest wait for a run that changes hands; then the caller is told to ask again."""


class Order(msgspec.Struct, frozen=True):
    """A command that somebody gives, under a key of their own."""

    key: UUID
    verb: str
    experiment: UUID | None
    """The experiment that it is about; None if it makes one."""
    digest: str
    """The sha256 of everything that the command says."""
    base: UUID | None = None
    """The first event id of a command that takes effect once, whoever gives it; else the id follows from the key."""

    def id(self, attempt: int) -> UUID:
        """The id of the event that the command becomes; each attempt that a fence made void leads to another."""
        if self.base is None:
            return derive(self.key, self.verb, self.digest, attempt)
        return derive(self.base, "attempt", attempt) if attempt else self.base


def order_of(key: UUID, verb: str, experiment: UUID | None, *body: Any, base: UUID | None = None) -> Order:
    """The order that says `body` with this verb."""
    said = msgspec.json.encode((experiment, body), order="deterministic")
    return Order(key, verb, experiment, hashlib.sha256(said).hexdigest(), base)


@dataclass
class _Holders:
    """The callers that ask under one key at this moment, all for the same order."""

    order: Order
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0


class Orders:
    """One at a time for each key; an order that is repeated gets the same answer, on any daemon of the log."""

    def __init__(
        self,
        folds: Iterable[Commands],
        refresh: Callable[[Position | None], Awaitable[None]],
        *,
        clock: Clock,
    ) -> None:
        """`folds` tell what keys were used for; `refresh` brings them to the log's present, at least past a record."""
        self._folds = tuple(folds)
        self._refresh = refresh
        self._clock = clock
        self._held: dict[UUID, _Holders] = {}

    async def carry_out(
        self,
        order: Order,
        write: Callable[[UUID], Awaitable[Position]],
        *,
        whole: Callable[[KeyUse], bool] = lambda _: True,
    ) -> KeyUse:
        """The record that is in effect: there already, and `whole`, or made by `write`, which is given its id.

        Raises ReusedKeyError if the key was used for something else, UnreachableError if nobody can decide on it now,
        and what `write` raises.
        """
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        async with self._alone(order):
            await self._refresh(None)
            use = self.standing(order)
            if use is not None and whole(use):
                return use
            while True:
                position: Position | None = None
                try:
                    position = await write(self._next_id(order))
                # The append may have happened all the same, or a fence may have come before it: only reading back
                # tells, so the loop goes on with a look and not with an error.
                except (FencedError, UnreachableError) as error:
                    if self._clock.monotonic_s() >= deadline_s:
                        fix = "ask again, with the same key"
                        raise UnreachableError(error.what, where=error.where, fix=fix) from error
                    await self._clock.sleep(AGAIN_S)
                await self._refresh(position)
                use = self.standing(order)
                # Without a position nobody knows whether this attempt wrote the record that stands there: then it has
                # to be `whole`.
                if use is not None and (position is not None or whole(use)):
                    return use

    async def check(self, order: Order) -> None:
        """Raises ReusedKeyError if the key was used for something else."""
        await self._refresh(None)
        self.standing(order)

    def standing(self, order: Order) -> KeyUse | None:
        """The record of the order that is in effect. Raises ReusedKeyError if the key was used for something else."""
        seen = self._at(self._next_id(order), order.key)
        uses = [use for fold in self._folds for use in fold.of(order.key) if use.effective]
        if not uses or (seen is not None and uses[0].event == seen.event):
            return seen
        raise _used(order, uses)

    def _next_id(self, order: Order) -> UUID:
        """The event id of the attempt that is in effect, or that is still to be made."""
        ids = (order.id(attempt) for attempt in count())
        return next(id for id in ids if (seen := self._at(id, order.key)) is None or seen.effective)

    def _at(self, event: UUID, key: UUID) -> KeyUse | None:
        return next((use for fold in self._folds if (use := fold.at(event, key)) is not None), None)

    @asynccontextmanager
    async def _alone(self, order: Order) -> AsyncIterator[None]:
        """Holds the key. Raises ReusedKeyError if it is in use for something else."""
        # No await between this line and the count: on one loop, nobody can remove the entry in between.
        holders = self._held.setdefault(order.key, _Holders(order))
        if holders.order != order:
            raise ReusedKeyError(
                f"this key is in use to {holders.order.verb} something else",
                field="Idempotency-Key",
                fix="send a new key",
            )
        holders.count += 1
        try:
            async with holders.lock:
                yield
        finally:
            holders.count -= 1
            if not holders.count:
                del self._held[order.key]


def _used(order: Order, uses: Sequence[KeyUse]) -> ReusedKeyError:
    """The refusal of a key. A fork is submitted first."""
    first = next((use for use in uses if use.verb == "fork"), uses[0])
    what = first.verb if first.experiment is None else f"{first.verb} {first.experiment}"
    same = first.verb == order.verb and first.experiment == order.experiment
    return ReusedKeyError(
        f"this key was used to {what} at {iso(first.time_ns)}" + (", with another body" if same else ""),
        field="Idempotency-Key",
        where=str(first.position),
        fix=f"send a new key to {order.verb} it",
    )


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
