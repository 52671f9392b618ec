"""`Orders`: idempotent commands: each takes effect once, however often a client repeats the request.

key, verb, digest of the body ─► event id ─► append ─► read back ─► effective: the answer
                                    ▲                     │
                                    └── attempt n + 1 ◄───┴─ voided by an earlier fence

`Verdicts` are orders about dead letters: retried or dropped, each once, for any caller and under any key.
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

from rftd.daemon.run.consequence import Consequence, Rehearsed
from rftd.daemon.run.dlq.dead_letter_service import DeadLetterService
from rftd.daemon.run.dlq.letter import Dead, DeadLetterReceipt, State
from rftd.daemon.run.dlq.verdicts import dropped_id
from rftd.daemon.run.registry import Entry
from rftd.daemon.run.supervisor.foresight import Outlook, foreseen
from rftd.daemon.run.supervisor.inbox import Request, check_command
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.clock import Clock, iso
from rftd.ops.errors import FencedError, ReusedKeyError, UnreachableError
from rftd.ops.ids import derive
from rftd.streams.folds.commands import Commands
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.key_use import KeyUse
from rftd.streams.log.envelope import Position

RETRY_PAUSE_S: Final = 0.2
"""Seconds between two attempts to append a command while another daemon takes the run over."""
PATIENCE_S: Final = 15.0
"""Maximum seconds of attempts while another daemon takes the run over; then the caller gets UnreachableError."""


class Order(msgspec.Struct, frozen=True):
    """One idempotent command of a client: repetitions have equal key, verb and body, and share one event."""

    key: UUID
    """Key of the client's request."""
    verb: str
    """Name of the command."""
    experiment: UUID | None
    """The experiment concerned; None if the command creates one."""
    digest: str
    """The sha256 of the experiment's id and the command's arguments, in hex; a repetition has an equal digest."""
    base: UUID | None = None
    """Event id of the first attempt, for commands recorded once for all callers (a retry or drop of a dead letter).
    None: the id is derived from key, verb and digest.
    """

    def id(self, attempt: int) -> UUID:
        """Returns the event id of an attempt, from 0. Attempt n + 1 is used after the event of attempt n was voided by
        a fence.
        """
        if self.base is None:
            return derive(self.key, self.verb, self.digest, attempt)
        return derive(self.base, "attempt", attempt) if attempt else self.base


def order_of(key: UUID, verb: str, experiment: UUID | None, *body: Any, base: UUID | None = None) -> Order:
    """Builds the order of a request: `body` are the command's arguments, to be digested; `base` is `Order.base`."""
    encoded = msgspec.json.encode((experiment, body), order="deterministic")
    return Order(key, verb, experiment, hashlib.sha256(encoded).hexdigest(), base)


@dataclass
class _Holders:
    """The concurrent requests under one key, all repetitions of one order; `lock` admits one at a time."""

    order: Order
    """The order that all requests under the key repeat."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock admitting one request of the key at a time."""
    count: int = 0
    """Number of requests using or awaiting the lock."""


class Orders:
    """Executes idempotent commands, one at a time per key; a repeated order gets the first answer, on any daemon of the
    log.
    """

    def __init__(
        self,
        folds: Iterable[Commands],
        refresh: Callable[[Position | None], Awaitable[None]],
        *,
        clock: Clock,
    ) -> None:
        """`folds` map keys to their uses; `refresh` brings them to the log's present end, at least past a record."""
        self._folds = tuple(folds)
        """Folds of used keys, by experiment and by dead letter."""
        self._refresh = refresh
        self._clock = clock
        self._holders_by_key: dict[UUID, _Holders] = {}
        """Requests under way, by key."""

    async def carry_out(
        self,
        order: Order,
        write: Callable[[UUID], Awaitable[Position]],
        *,
        whole: Callable[[KeyUse], bool] = lambda _: True,
    ) -> KeyUse:
        """Executes an order once, and returns the effective event recording it: an earlier one, or a new one appended
        by `write`.

        `write` appends the event under the id passed to it. `whole` is True for a complete earlier record; after an
        incomplete one (a submission without its second event) `write` is called again. Raises ReusedKeyError if the key
        belongs to another order, UnreachableError if no daemon could decide within `PATIENCE_S`, and the errors of
        `write`.
        """
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        async with self._holding_key(order):
            await self._refresh(None)
            use = self.standing(order)
            if use is not None and whole(use):
                return use
            while True:
                position: Position | None = None
                try:
                    position = await write(self._next_id(order))
                # The append may have succeeded in spite of the error, or a fence may have preceded it: only reading
                # back shows which, so the loop reads back and does not raise.
                except (FencedError, UnreachableError) as error:
                    if self._clock.monotonic_s() >= deadline_s:
                        fix = "ask again, with the same key"
                        raise UnreachableError(error.what, where=error.where, fix=fix) from error
                    await self._clock.sleep(RETRY_PAUSE_S)
                await self._refresh(position)
                use = self.standing(order)
                # Without a position, the record may come from another attempt, and has to be complete.
                if use is not None and (position is not None or whole(use)):
                    return use

    async def check(self, order: Order) -> None:
        """Raises ReusedKeyError if the key was used for another order."""
        await self._refresh(None)
        self.standing(order)

    def standing(self, order: Order) -> KeyUse | None:
        """Returns the effective (not voided by a fence) event of an order; None before the first. Raises ReusedKeyError
        if the key belongs to another order.
        """
        standing_use = self._at(self._next_id(order), order.key)
        uses = [use for fold in self._folds for use in fold.of(order.key) if use.effective]
        if not uses or (standing_use is not None and uses[0].event == standing_use.event):
            return standing_use
        raise _reused_key(order, uses)

    def _next_id(self, order: Order) -> UUID:
        """Returns the event id of the order's effective attempt; if none is effective, the id for the next attempt."""
        ids = (order.id(attempt) for attempt in count())
        return next(id for id in ids if (use := self._at(id, order.key)) is None or use.effective)

    def _at(self, event: UUID, key: UUID) -> KeyUse | None:
        """Returns the recorded use of a key by this event id; None if the event is not in the log."""
        return next((use for fold in self._folds if (use := fold.at(event, key)) is not None), None)

    @asynccontextmanager
    async def _holding_key(self, order: Order) -> AsyncIterator[None]:
        """A context admitting one request of the key at a time. Raises ReusedKeyError while another order uses the
        key.
        """
        # No await between this line and the count: on one loop, nothing can remove the entry in between.
        holders = self._holders_by_key.setdefault(order.key, _Holders(order))
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
                del self._holders_by_key[order.key]


def _reused_key(order: Order, uses: Sequence[KeyUse]) -> ReusedKeyError:
    """Returns the refusal of a reused key; of a fork and its submission, the fork is named."""
    first = next((use for use in uses if use.verb == "fork"), uses[0])
    earlier_command = first.verb if first.experiment is None else f"{first.verb} {first.experiment}"
    repeats = first.verb == order.verb and first.experiment == order.experiment
    return ReusedKeyError(
        f"this key was used to {earlier_command} at {iso(first.time_ns)}" + (", with another body" if repeats else ""),
        field="Idempotency-Key",
        where=str(first.position),
        fix=f"send a new key to {order.verb} it",
    )


class RunUnderWay(Protocol):
    """A function returning this daemon's run of an experiment. Raises ConflictError with the advice `fix` if there is
    none.
    """

    def __call__(self, experiment: UUID, *, fix: str, whose: str = "the") -> Run:
        """Returns this daemon's run of the experiment; `whose` begins the error's sentence: `the` or `its`
        experiment.
        """
        ...


class Verdicts:
    """Verdicts on dead letters, carried out as orders, so that each takes effect once."""

    def __init__(
        self,
        dead_letters: DeadLetterService,
        orders: Orders,
        run_under_way: RunUnderWay,
        entry: Callable[[UUID], Entry],
    ) -> None:
        """`run_under_way` returns the run of a task's experiment; `entry` looks experiments up by id."""
        self._entry = entry
        self._dead_letters = dead_letters
        self._orders = orders
        self._run_under_way = run_under_way

    async def retry(self, dead: Dead, *, by: str, reason: str, key: UUID) -> DeadLetterReceipt:
        """Leases the failed task of a dead letter once more. See `Operations.retry_dead_letter`."""
        # Derived from the group, not from the caller's key: two people retrying one task under two keys lease it once.
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
        return await self._dead_letters.retry(dead, give_out, by=by)

    async def foresee_retry(self, dead: Dead, outlook: Callable[[Entry], Outlook]) -> None:
        """Raises `Rehearsed` with the consequence of a retry, or the errors of `retry`; records nothing."""
        if dead.letter.state is State.RETRIED:
            raise Rehearsed(Consequence(name=dead.letter.id, sentence="nothing: it was retried already"))
        if dead.task is None:
            raise await self._dead_letters.refusal(dead)
        run = self._run_under_way(dead.task.experiment, fix="fork it, or submit a new one", whose="its")
        event = run.retry_event(dead.task, by="", reason="")
        check_command(run.state, event)
        raise Rehearsed(foreseen(event, outlook(self._entry(dead.task.experiment))))

    def foresee_drop(self, dead: Dead) -> None:
        """Raises `Rehearsed` with the consequence of a drop, or the errors of `drop`; records nothing."""
        self._dead_letters.check_droppable(dead)
        sentence = "nothing: it was dropped already"
        if dead.letter.state is State.OPEN:
            sentence = f"the {dead.letter.kind} leaves the list of open dead letters; it stays in the log"
        raise Rehearsed(Consequence(name=dead.letter.id, sentence=sentence))

    async def drop(self, dead: Dead, *, by: str, reason: str, key: UUID) -> DeadLetterReceipt:
        """Marks a dead letter as dropped, with a reason. See `Operations.drop_dead_letter`."""
        experiment = dead.task.experiment if dead.task is not None else None
        id = dead.letter.id
        order = order_of(key, "drop", experiment, id, by, reason, base=dropped_id(dead.place))
        await self._orders.check(order)
        if dead.letter.state is State.DROPPED:
            return DeadLetterReceipt(id=id, state=State.DROPPED, already=True, position=None)
        use = await self._orders.carry_out(
            order, lambda _: self._dead_letters.drop(dead, by=by, reason=reason, key=key)
        )
        return DeadLetterReceipt(id=id, state=State.DROPPED, already=False, position=str(use.position))
