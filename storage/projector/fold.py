"""`TableFold`, the pure half of the projector: records to row changes, positions and dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops.errors import CodecError, RftdError
from rftd.storage.projector.projections import PROJECTIONS, Projection
from rftd.storage.projector.projections.progress import KINDS as ONCE
from rftd.storage.projector.projections.projection import Handler
from rftd.storage.projector.projections.workers import DEAD_LETTER, PROJECTOR
from rftd.storage.projector.standing_plans import StandingPlans
from rftd.storage.projector.upserts import Changes, Upsert, Values
from rftd.streams.events.catalogue import UnknownVersionError
from rftd.streams.events.registry import Event
from rftd.streams.events.worker import RecordDeadLettered
from rftd.streams.folds.once import PlannedBatches, Recent
from rftd.streams.log.chain import GENESIS, Heads, Mark
from rftd.streams.log.deadletters import head_of
from rftd.streams.log.effective import ruling
from rftd.streams.log.envelope import Decoded, Head, Record
from rftd.streams.log.fencing import FenceOwner, FenceView
from rftd.streams.log.requests import is_request
from rftd.streams.log.topics import EXPERIMENTS, Partition

_NOBODY: Final = UUID(int=0)
_NO_HEAD: Final = Head(id=_NOBODY, type="", version=0, experiment=None, source="", time_ns=0)


@dataclass(frozen=True)
class FenceState:
    """One row of the fences table."""

    partition: Partition
    experiment: UUID | None
    role: str
    epoch: int
    owner: UUID


@dataclass
class Folded:
    """The changes of some records, to be written in one transaction."""

    before: Heads = field(default_factory=dict)
    """The position of each touched partition before them, which the tables must still have."""
    after: Heads = field(default_factory=dict)
    """The position of each touched partition after them."""
    rows: dict[Upsert, list[Values]] = field(default_factory=dict)
    applied: Counter[UUID | None] = field(default_factory=Counter)
    """Records that had an effect, by experiment."""
    void: int = 0
    """Records that a fence made void, and plans that are not of the next step."""
    repeated: Counter[str] = field(default_factory=Counter)
    """Records whose event was in their partition before, by stream."""
    letters: list[RecordDeadLettered] = field(default_factory=list)
    """A pointer to each record that could not be used."""


class TableFold:
    """The fold of the log into tables: positions, fences, and the functions of the projections.

    A record below its partition's position changes nothing.
    """

    def __init__(
        self,
        positions: Mapping[Partition, Mark],
        fences: Iterable[FenceState] = (),
        projections: Iterable[Projection] = PROJECTIONS,
        once: Iterable[tuple[Partition, bytes]] = (),
        planned: Mapping[UUID, PlannedBatches] | None = None,
    ) -> None:
        """Goes on where the tables stand: `once` are the ids of events that must not count again, the newest last."""
        self.positions: dict[Partition, Mark] = dict(positions)
        self._fences = FenceView(
            FenceOwner(
                stream=each.partition.stream,
                partition=each.partition.number,
                experiment=each.experiment,
                role=each.role,
                epoch=each.epoch,
                owner=each.owner,
            )
            for each in fences
        )
        self._plans = StandingPlans(planned)
        self._once: dict[Partition, Recent] = {}
        for partition, id in once:
            self._once.setdefault(partition, Recent()).first(UUID(bytes=id))
        self._handlers: dict[type[Event], list[Handler]] = {}
        for projection in projections:
            for kind, handler in projection.handlers.items():
                self._handlers.setdefault(kind, []).append(handler)

    def take(self, records: Iterable[Record]) -> Folded:
        """The row changes of records that are new; each partition's must be in order.

        Raises UnknownVersionError for a record of a newer release: to skip it would make the tables wrong for ever.
        Raises OverflowError if a value fits no column; this fold is then of no more use.
        """
        folded = Folded()
        changes = Changes()
        newest: dict[Partition, Record] = {}
        for record in records:
            last = newest.get(record.partition)
            start = self.positions.get(record.partition, _START).next_offset if last is None else last.offset + 1
            if record.offset < start:  # read again after a failed commit, or by another subscription
                continue
            newest[record.partition] = record
            self._apply(record, folded, changes)
        for partition, record in newest.items():
            folded.before[partition] = self.positions.get(partition, _START)
            self.positions[partition] = folded.after[partition] = Mark(record.offset + 1, record.chain)
        folded.rows = changes.rows()
        return folded

    def bury(self, record: Record, error: Exception) -> Folded:
        """A dead letter and a position in place of a record's own changes."""
        # Both in one transaction: a position that passed the record without the letter would hide it.
        folded = Folded(before={record.partition: self.positions.get(record.partition, _START)})
        mark = Mark(record.offset + 1, record.chain)
        self.positions[record.partition] = folded.after[record.partition] = mark
        changes = Changes()
        folded.letters.append(_bury(record, error, changes))
        folded.rows = changes.rows()
        return folded

    def _apply(self, record: Record, folded: Folded, changes: Changes) -> None:
        try:
            decoded, effective = ruling(record, self._fences)
        except UnknownVersionError:
            raise
        except CodecError as error:
            if not is_request(record):  # that one has its answer
                folded.letters.append(_bury(record, error, changes, unreadable=True))
            return
        if not effective or (decoded.partition.stream == EXPERIMENTS and not self._plans.counts(decoded)):
            folded.void += 1
            return
        try:
            kind = type(decoded.event)
            ids = self._once.get(record.partition)
            if ids is not None and decoded.head.id in ids:
                folded.repeated[record.partition.stream] += 1
                return
            for handler in self._handlers.get(kind, ()):
                handler(decoded.event, decoded, changes)
            if kind in ONCE:
                self._once.setdefault(record.partition, Recent()).first(decoded.head.id)
            folded.applied[decoded.head.experiment] += 1
        except (CodecError, ValueError, ArithmeticError) as error:
            # Bytes of a foreign program, or values that no writer of ours makes.
            folded.letters.append(_bury(record, error, changes))


_START: Final = Mark(0, GENESIS)


def _bury(record: Record, error: Exception, changes: Changes, *, unreadable: bool = False) -> RecordDeadLettered:
    reason = error.what if isinstance(error, RftdError) else f"{type(error).__name__}: {error}"
    letter = RecordDeadLettered(
        stream=record.partition.stream,
        partition=record.partition.number,
        offset=record.offset,
        consumer=PROJECTOR,
        code=error.code if isinstance(error, RftdError) else CodecError.code,
        reason=reason[:500],
        unreadable=unreadable,
    )
    changes.put(
        DEAD_LETTER,
        Decoded(record.partition, record.offset, head_of(record) or _NO_HEAD, Event()),
        **msgspec.structs.asdict(letter),
    )
    return letter
