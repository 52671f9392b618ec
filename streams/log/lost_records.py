"""Losses: heads remembered outside the log, by files or processes, and missing in it."""

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
from rftd.streams.log.marked import FieldMark, RememberedHeads, carries, changed
from rftd.streams.log.topics import TRUTH, Partition


class Witness(NamedTuple):
    """A holder of remembered heads, such as a checkpoint or a worker, described in words, with the heads."""

    by: str
    """Description of the holder, for messages."""
    heads: Heads
    """The remembered heads."""


class Loss(msgspec.Struct, frozen=True):
    """One remembered head missing in the log, with the experiments that may have lost records."""

    head: LostHead
    """The remembered head, with its witness and the partition's end when the loss was detected."""
    experiments: tuple[UUID, ...] | None = None
    """Experiments not ended when the loss was first detected; None if unknown: every experiment not ended."""

    @property
    def partition(self) -> Partition:
        """The partition with the lost records."""
        return Partition(self.head.stream, self.head.partition)

    @property
    def mark(self) -> Mark:
        """The remembered head: next offset and chain."""
        return Mark(self.head.next_offset, self.head.chain)

    @property
    def where(self) -> str:
        """Position of the last remembered record."""
        return f"{self.partition}@{self.head.next_offset - 1}"

    @property
    def what(self) -> str:
        """Text naming the loss, and who remembers the head."""
        if not self.head.chain:
            return f"{self.where} was deleted, and more before it (evidence: {self.head.by})"
        if self.head.end < self.head.next_offset:
            statement = f"{self.where} was acknowledged and is gone: the log ends before {self.head.end}"
        else:
            statement = f"{self.where} is not the record that was acknowledged"
        return f"{statement}; {self.head.by} remembers it"


class Life(NamedTuple):
    """Id, end and accepted losses of an experiment, from which it follows whether a loss concerns it."""

    id: UUID
    """Id of the experiment."""
    ended: bool
    """True if the experiment has ended."""
    accepted: Collection[HeadRef]
    """The lost heads accepted by a person, letting the experiment continue."""


@runtime_checkable
class Deletable(Protocol):
    """A log whose records other programs can delete, leaving gaps of offsets."""

    async def deleted(self) -> list[tuple[Partition, Stretch]]:
        """Returns the ranges of missing records, as far as partitions were read."""
        ...


@runtime_checkable
class ManyChains(Protocol):
    """A log that returns the chains of many records faster than `check_heads` compares them one by one."""

    async def chains(self, offsets: Mapping[Partition, Collection[int]]) -> dict[tuple[Partition, int], bytes]:
        """Returns the chains of the readable records at these offsets, by partition and offset."""
        ...


async def deleted_from(log: EventLog) -> list[Loss]:
    """Returns losses that show in the log itself, as gaps of offsets; empty for logs without such gaps."""
    deletions = await log.deleted() if isinstance(log, Deletable) else []
    return [
        Loss(LostHead(*partition, stretch.end, b"", _sign(stretch), stretch.end)) for partition, stretch in deletions
    ]


async def still_lost(log: EventLog, losses: Iterable[Loss]) -> set[HeadRef]:
    """Returns the heads among `losses` still missing from the log."""
    former = list(losses)
    witnesses = [Witness(loss.head.by, heads_of([loss.head.ref])) for loss in former if loss.head.chain]
    still = {loss.head.ref for loss in await losses_of(log, witnesses)}
    # Without a chain there is nothing to compare: the record itself was deleted, and is back or is not.
    for loss in former:
        if not loss.head.chain:
            last_offset = loss.head.next_offset - 1
            records = await log.read(loss.partition, last_offset, max_records=1)
            if not records or records[0].offset != last_offset:
                still.add(loss.head.ref)
    return still


async def losses_of(log: EventLog, witnesses: Iterable[Witness]) -> list[Loss]:
    """Returns the heads of truth remembered by the witnesses and missing from the log, each once."""
    return await losses_among(log, comparable(witnesses))


def comparable(witnesses: Iterable[Witness]) -> dict[HeadRef, str]:
    """Returns the heads to be compared with a log, each with its first witness; streams that may be truncated are left
    out.
    """
    remembered: dict[HeadRef, str] = {}
    for witness in witnesses:
        for partition, mark in witness.heads.items():
            # Without a chain the witness knows a position only, and at the beginning there is nothing to lose.
            if mark.next_offset > 0 and mark.chain not in (b"", GENESIS) and partition in _TRUTH:
                remembered.setdefault(HeadRef(*partition, *mark), witness.by)
    return remembered


def newest_of(remembered: Mapping[HeadRef, str]) -> dict[HeadRef, str]:
    """Returns the highest remembered heads of each partition, which an append could hide; lower ones stay
    comparable.
    """
    ends: dict[tuple[str, int], int] = {}
    for ref in remembered:
        partition = (ref.stream, ref.partition)
        ends[partition] = max(ref.next_offset, ends.get(partition, 0))
    return {ref: by for ref, by in remembered.items() if ref.next_offset == ends[ref.stream, ref.partition]}


async def losses_among(log: EventLog, remembered: Mapping[HeadRef, str]) -> list[Loss]:
    """Returns the remembered heads missing in the log, compared by chains if the log has `ManyChains`."""
    unread = await _unread(log, remembered) if isinstance(log, ManyChains) else list(remembered)
    lost = [ref for layer in _layers(unread) for ref in await _missing(log, layer)]
    if not lost:
        return []
    ends = await log.heads()
    return [_loss(ref, remembered[ref], ends) for ref in lost]


async def _unread(log: ManyChains, remembered: Iterable[HeadRef]) -> list[HeadRef]:
    """Returns the heads with chains missing or different in the log's answer: only a comparison decides them."""
    refs = list(remembered)
    offsets: dict[Partition, list[int]] = {}
    for ref in refs:
        offsets.setdefault(Partition(ref.stream, ref.partition), []).append(ref.next_offset - 1)
    chains = await log.chains(offsets)
    return [ref for ref in refs if chains.get((Partition(ref.stream, ref.partition), ref.next_offset - 1)) != ref.chain]


def affected(loss: Loss, lives: Iterable[Life]) -> list[UUID]:
    """Returns the running experiments to which records of the loss may have belonged, and whose owner has not accepted
    it.
    """
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
    """True if records of this experiment, ended or not, may be among the loss, and nobody accepted the loss for it.

    `start` are heads below which the experiment has no record; `accepted` are the heads accepted as lost for it.
    """
    if loss.partition not in partitions_of(experiment) or loss.head.ref in accepted:
        return False
    return heads_of(start).get(loss.partition, _EMPTY_HEAD).next_offset < loss.head.end


def unsettled(losses: Iterable[Loss], lives: Sequence[Life]) -> Iterator[tuple[Loss, list[UUID]]]:
    """Yields each loss that still stops experiments, with those experiments; also losses nobody has accepted."""
    accepted = {ref for life in lives for ref in life.accepted}
    for loss in losses:
        stopped = affected(loss, lives)
        if stopped or loss.head.ref not in accepted:
            yield loss, stopped


async def remembered_within(log: EventLog) -> list[Witness]:
    """Returns the heads remembered by the log's own events, such as checkpoints and fences. Reads their streams
    completely.
    """
    witnesses: list[Witness] = []
    with_heads = [definition for definition in definitions() if carries(definition.kind, RememberedHeads)]
    names = {definition.name for definition in with_heads}
    # A fence lies in every stream written by its role, and carries heads in the first alone, which is the spine.
    streams = {definition.stream for definition in with_heads}
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
                    witnesses.append(Witness(f"{head.type} at {partition}@{record.offset}", heads))
    return witnesses


def _remembered_by(event: Event) -> Heads:
    """Returns the heads in an event's marked fields."""
    remembered: list[HeadRef] = []

    def collect(_mark: FieldMark, refs: tuple[HeadRef, ...], _holder: object) -> tuple[HeadRef, ...]:
        remembered.extend(refs)
        return refs

    changed(event, RememberedHeads, collect)
    return heads_of(remembered)


def _sign(stretch: Stretch) -> str:
    """Describes the evidence for the loss of these records, in words."""
    return f"the gap beginning at {stretch.first}" if stretch.first else "the first remaining record"


def heads_of(refs: Iterable[HeadRef]) -> Heads:
    """Converts the heads stored in an event to a mapping from partition to next offset and chain."""
    return {Partition(ref.stream, ref.partition): Mark(ref.next_offset, ref.chain) for ref in refs}


def loss_error(losses: Sequence[Loss], name: str) -> LogLossError:
    """Builds the error of an experiment (`name`) stopped by losses, with the operator's choices as the fix."""
    more = f" (and {len(losses) - 1} more)" if len(losses) > 1 else ""
    return LogLossError(
        f"{losses[0].what}{more}",
        where=losses[0].where,
        fix="restore the log that has it; or continue without the lost records: restart with "
        f"`rftd serve --accept-loss {name}`",
    )


_EMPTY_HEAD = Mark(0, GENESIS)
"""The head of a partition without records."""
_TRUTH = frozenset(TRUTH)
"""The partitions that a loss may concern."""


def _layers(refs: Iterable[HeadRef]) -> Iterator[Heads]:
    """Yields the remembered heads in parts for one check each: at most one head of a partition."""
    marks_of: dict[Partition, list[Mark]] = {}
    for ref in refs:
        marks_of.setdefault(Partition(ref.stream, ref.partition), []).append(Mark(ref.next_offset, ref.chain))
    while marks_of:
        yield {partition: marks.pop() for partition, marks in marks_of.items()}
        marks_of = {partition: marks for partition, marks in marks_of.items() if marks}


async def _missing(log: EventLog, heads: Heads) -> list[HeadRef]:
    # A check names the first missing head and stops: after a failure, each head is checked alone.
    """Returns those of these heads that the log lacks."""
    try:
        await log.check_heads(heads)
    except LogLossError:
        if len(heads) == 1:
            return [HeadRef(*partition, *mark) for partition, mark in heads.items()]
        return [ref for partition, mark in heads.items() for ref in await _missing(log, {partition: mark})]
    return []


def _loss(ref: HeadRef, by: str, ends: Mapping[Partition, Mark]) -> Loss:
    """Describes a missing head, with the present end of its partition."""
    end = ends.get(Partition(ref.stream, ref.partition), _EMPTY_HEAD).next_offset
    return Loss(LostHead(ref.stream, ref.partition, ref.next_offset, ref.chain, by, end))
