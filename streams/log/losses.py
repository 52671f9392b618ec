"""Losses: what survivors of a log remember that it does not hold any more (rule 10)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from rftd.ops.errors import LogLossError
from rftd.streams.events.catalogue import definitions
from rftd.streams.events.experiment import HeadRef, LostHead
from rftd.streams.events.registry import Event
from rftd.streams.folds.run_state import partitions_of
from rftd.streams.log.chain import GENESIS, Heads, Mark
from rftd.streams.log.deadletters import head_of, understood_with
from rftd.streams.log.envelope import Stretch
from rftd.streams.log.log import EventLog
from rftd.streams.log.log_place import RememberedHeads
from rftd.streams.log.marked import FieldMark, carries, changed
from rftd.streams.log.topics import TRUTH, Partition


class Witness(NamedTuple):
    """A survivor, in words, and the heads that it remembers."""

    by: str
    heads: Heads


class Loss(msgspec.Struct, frozen=True):
    """One remembered head that is not in the log."""

    head: LostHead
    experiments: tuple[UUID, ...] | None = None
    """Those that had not ended in the log that was left when it was first noticed; None: all that have not."""

    @property
    def partition(self) -> Partition:
        """The partition that lost records."""
        return Partition(self.head.stream, self.head.partition)

    @property
    def mark(self) -> Mark:
        """The head in the form in which a log compares it."""
        return Mark(self.head.next_offset, self.head.chain)

    @property
    def where(self) -> str:
        """The position of the record that is remembered last."""
        return f"{self.partition}@{self.head.next_offset - 1}"

    @property
    def what(self) -> str:
        """The loss and who remembers it, in words."""
        if not self.head.chain:
            return f"{self.where} was deleted, and more before it: {self.head.by} says so"
        if self.head.end < self.head.next_offset:
            gone = f"{self.where} was acknowledged and is gone: the log ends before {self.head.end}"
        else:
            gone = f"{self.where} is not the record that was acknowledged"
        return f"{gone}; {self.head.by} remembers it"


class Life(NamedTuple):
    """An experiment, as whoever weighs losses looks at it."""

    id: UUID
    ended: bool
    accepted: Collection[HeadRef]
    """The lost heads without which somebody let it go on."""


@runtime_checkable
class Deletable(Protocol):
    """A log whose records somebody else may delete, which leaves offsets without a record."""

    async def deleted(self) -> list[tuple[Partition, Stretch]]:
        """The records of truth that are gone, as far as its partitions were read."""
        ...


@runtime_checkable
class ManyChains(Protocol):
    """A log that tells the chains of many records for less than a comparison of each costs."""

    async def chains(self, offsets: Mapping[Partition, Collection[int]]) -> dict[tuple[Partition, int], bytes]:
        """The chains of the records at these offsets, by partition and offset, as far as they can be read."""
        ...


async def deleted_from(log: EventLog) -> list[Loss]:
    """The losses that the offsets of the log's partitions show by themselves: nobody has to remember those records."""
    gone = await log.deleted() if isinstance(log, Deletable) else []
    return [Loss(LostHead(*partition, stretch.end, b"", _sign(stretch), stretch.end)) for partition, stretch in gone]


async def still_lost(log: EventLog, losses: Iterable[Loss]) -> set[HeadRef]:
    """The heads among `losses` that the log still does not hold."""
    before = list(losses)
    witnesses = [Witness(loss.head.by, heads_of([loss.head.ref])) for loss in before if loss.head.chain]
    still = {loss.head.ref for loss in await losses_of(log, witnesses)}
    # Without a chain there is nothing to compare: the record itself was deleted, and is there again or is not.
    for loss in before:
        if not loss.head.chain:
            last = loss.head.next_offset - 1
            records = await log.read(loss.partition, last, max_records=1)
            if not records or records[0].offset != last:
                still.add(loss.head.ref)
    return still


async def losses_of(log: EventLog, witnesses: Iterable[Witness]) -> list[Loss]:
    """The heads of truth that the witnesses remember and the log does not hold, each once."""
    return await losses_among(log, comparable(witnesses))


def comparable(witnesses: Iterable[Witness]) -> dict[HeadRef, str]:
    """The heads of truth that can be compared with a log, each with the first witness that remembers it."""
    remembered: dict[HeadRef, str] = {}
    for witness in witnesses:
        for partition, mark in witness.heads.items():
            # Without a chain the witness knows a place only, and at the beginning there is nothing to lose.
            if mark.next_offset > 0 and mark.chain not in (b"", GENESIS) and partition in _TRUTH:
                remembered.setdefault(HeadRef(*partition, *mark), witness.by)
    return remembered


def newest_of(remembered: Mapping[HeadRef, str]) -> dict[HeadRef, str]:
    """The heads that lie furthest in their partitions: those that an append may hide.

    What is remembered below a head that the log holds stays as it is there, or as it is lost, whatever is appended.
    """
    ends: dict[tuple[str, int], int] = {}
    for ref in remembered:
        place = (ref.stream, ref.partition)
        ends[place] = max(ref.next_offset, ends.get(place, 0))
    return {ref: by for ref, by in remembered.items() if ref.next_offset == ends[ref.stream, ref.partition]}


async def losses_among(log: EventLog, remembered: Mapping[HeadRef, str]) -> list[Loss]:
    """The remembered heads that the log does not hold."""
    wanted = await _unread(log, remembered) if isinstance(log, ManyChains) else list(remembered)
    lost = [ref for layer in _layers(wanted) for ref in await _missing(log, layer)]
    if not lost:
        return []
    ends = await log.heads()
    return [_loss(ref, remembered[ref], ends) for ref in lost]


async def _unread(log: ManyChains, remembered: Iterable[HeadRef]) -> list[HeadRef]:
    """The heads whose chains the log did not tell, or tells otherwise: only a comparison decides about them."""
    refs = list(remembered)
    offsets: dict[Partition, list[int]] = {}
    for ref in refs:
        offsets.setdefault(Partition(ref.stream, ref.partition), []).append(ref.next_offset - 1)
    chains = await log.chains(offsets)
    return [ref for ref in refs if chains.get((Partition(ref.stream, ref.partition), ref.next_offset - 1)) != ref.chain]


def affected(loss: Loss, lives: Iterable[Life]) -> list[UUID]:
    """The experiments whose truth may have been among what was lost, and whose owner has not accepted that."""
    ref = loss.head.ref
    return [
        life.id
        for life in lives
        if not life.ended
        and (loss.experiments is None or life.id in loss.experiments)
        and loss.partition in partitions_of(life.id)
        and ref not in life.accepted
    ]


def bereaves(loss: Loss, experiment: UUID, *, start: Iterable[HeadRef], accepted: Collection[HeadRef]) -> bool:
    """True if records of an experiment may have been among what was lost, be it over or not, and nobody accepted that.

    `start` are heads below which it has no record.
    """
    if loss.partition not in partitions_of(experiment) or loss.head.ref in accepted:
        return False
    return heads_of(start).get(loss.partition, _NOTHING).next_offset < loss.head.end


def unsettled(losses: Iterable[Loss], lives: Sequence[Life]) -> Iterator[tuple[Loss, list[UUID]]]:
    """The losses that nobody has accepted, or not for each experiment that it stops, with those experiments."""
    accepted = {ref for life in lives for ref in life.accepted}
    for loss in losses:
        stopped = affected(loss, lives)
        if stopped or loss.head.ref not in accepted:
            yield loss, stopped


async def remembered_within(log: EventLog) -> list[Witness]:
    """The heads that the log's own events remember of it. Reads the streams that hold such events whole."""
    found: list[Witness] = []
    holding = [definition for definition in definitions() if carries(definition.kind, RememberedHeads)]
    names = {definition.name for definition in holding}
    # A fence lies in every stream that its role writes, and carries heads in the first alone, which is the spine.
    streams = {definition.stream for definition in holding}
    for partition in TRUTH:
        if partition.stream not in streams:
            continue
        offset = 0
        while records := await log.read(partition, offset):
            for record in records:
                offset = record.offset + 1
                head = head_of(record)
                if head is None or head.type not in names:
                    continue
                decoded = understood_with(head, record)
                heads = _remembered_by(decoded.event) if decoded is not None else {}
                if heads:
                    found.append(Witness(f"{head.type} at {partition}@{record.offset}", heads))
    return found


def _remembered_by(event: Event) -> Heads:
    """The heads in an event's marked fields."""
    found: list[HeadRef] = []

    def seen(_mark: FieldMark, refs: tuple[HeadRef, ...], _holder: object) -> tuple[HeadRef, ...]:
        found.extend(refs)
        return refs

    changed(event, RememberedHeads, seen)
    return heads_of(found)


def _sign(gone: Stretch) -> str:
    """The evidence that these records are gone, in words."""
    return f"the gap that begins at {gone.first}" if gone.first else "the first record that is left"


def heads_of(refs: Iterable[HeadRef]) -> Heads:
    """The heads that an event holds, by partition."""
    return {Partition(ref.stream, ref.partition): Mark(ref.next_offset, ref.chain) for ref in refs}


def loss_error(losses: Sequence[Loss], name: str) -> LogLossError:
    """Why an experiment is stopped, with the choice that a person has."""
    more = f" (and {len(losses) - 1} more)" if len(losses) > 1 else ""
    return LogLossError(
        f"{losses[0].what}{more}",
        where=losses[0].where,
        fix="put the log back that holds it; or go on without what was lost: restart with "
        f"`rftd serve --accept-loss {name}`",
    )


_NOTHING = Mark(0, GENESIS)
_TRUTH = frozenset(TRUTH)


def _layers(wanted: Iterable[HeadRef]) -> Iterator[Heads]:
    """The remembered heads in parts that may be asked for at once: of each partition one."""
    left: dict[Partition, list[Mark]] = {}
    for ref in wanted:
        left.setdefault(Partition(ref.stream, ref.partition), []).append(Mark(ref.next_offset, ref.chain))
    while left:
        yield {partition: marks.pop() for partition, marks in left.items()}
        left = {partition: marks for partition, marks in left.items() if marks}


async def _missing(log: EventLog, heads: Heads) -> list[HeadRef]:
    # A check names the first head that is not there and stops: with one left out, each is asked for by itself.
    try:
        await log.check_heads(heads)
    except LogLossError:
        if len(heads) == 1:
            return [HeadRef(*partition, *mark) for partition, mark in heads.items()]
        return [ref for partition, mark in heads.items() for ref in await _missing(log, {partition: mark})]
    return []


def _loss(ref: HeadRef, by: str, ends: Mapping[Partition, Mark]) -> Loss:
    end = ends.get(Partition(ref.stream, ref.partition), _NOTHING).next_offset
    return Loss(LostHead(ref.stream, ref.partition, ref.next_offset, ref.chain, by, end))
