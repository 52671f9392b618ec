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
from rftd.streams.folds.ranges import PlannedBatches, Recent
from rftd.streams.log.chain import GENESIS, Heads, Mark
from rftd.streams.log.deadletters import head_of
from rftd.streams.log.effective import ruling
from rftd.streams.log.envelope import Decoded, Head, Record
from rftd.streams.log.fencing import FenceOwner, FenceView
from rftd.streams.log.requests import is_request
from rftd.streams.log.topics import EXPERIMENTS, Partition

_NOBODY: Final = UUID(int=0)
"""Id in place of the id of an unreadable record."""
_NO_HEAD: Final = Head(id=_NOBODY, type="", version=0, experiment=None, source="", time_ns=0)
"""Head in place of an unreadable one."""


@dataclass(frozen=True)
class FenceState:
    """A row of the fences table: the owner and epoch of a role in a partition."""

    partition: Partition
    """Partition in which the role is fenced."""
    experiment: UUID | None
    """The experiment; None for a role of the whole log."""
    role: str
    """Name of the role."""
    epoch: int
    """Epoch of the newest fence."""
    owner: UUID
    """Owner of the role since the newest fence."""


@dataclass
class Folded:
    """The changes of some records, to be written in one transaction."""

    before: Heads = field(default_factory=dict)
    """The position of each touched partition before these records; the tables must still be there."""
    after: Heads = field(default_factory=dict)
    """The position of each touched partition after these records."""
    rows: dict[Upsert, list[Values]] = field(default_factory=dict)
    """Rows to write, by statement."""
    applied: Counter[UUID | None] = field(default_factory=Counter)
    """Number of records with an effect, by experiment."""
    void: int = 0
    """Number of records voided by a fence, and of plans that are not of the next step."""
    repeated: Counter[str] = field(default_factory=Counter)
    """Number of records whose event was already in their partition, by stream."""
    letters: list[RecordDeadLettered] = field(default_factory=list)
    """A pointer to each unusable record."""


class TableFold:
    """The fold of the log into tables: positions, fences, and the handlers of the projections.

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
        """Continues from the state of the tables: `once` has the ids of events not to be counted again, the newest
        last.
        """
        self.positions: dict[Partition, Mark] = dict(positions)
        """Next offset and chain value of each partition."""
        self._fences = FenceView(
            FenceOwner(
                stream=fence.partition.stream,
                partition=fence.partition.number,
                experiment=fence.experiment,
                role=fence.role,
                epoch=fence.epoch,
                owner=fence.owner,
            )
            for fence in fences
        )
        """Owner of each role."""
        self._plans = StandingPlans(planned)
        """Plans of every experiment, by which plans of any but the next step are void."""
        self._once: dict[Partition, Recent] = {}
        """Newest events of each partition that must not count twice."""
        for partition, id in once:
            self._once.setdefault(partition, Recent()).first(UUID(bytes=id))
        self._handlers: dict[type[Event], list[Handler]] = {}
        """Functions adding the row changes of each event type."""
        for projection in projections:
            for kind, handler in projection.handlers.items():
                self._handlers.setdefault(kind, []).append(handler)

    def take(self, records: Iterable[Record]) -> Folded:
        """Returns the row changes of new records; records of a partition must be in order.

        Raises UnknownVersionError for a record of a newer release: skipping would make the tables wrong for ever.
        Raises OverflowError if a value fits no column; the fold is unusable afterwards.
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
        """Returns a dead letter and a new position in place of a record's own changes."""
        # Both in a single transaction: a position beyond the record without the letter would hide the record.
        folded = Folded(before={record.partition: self.positions.get(record.partition, _START)})
        mark = Mark(record.offset + 1, record.chain)
        self.positions[record.partition] = folded.after[record.partition] = mark
        changes = Changes()
        folded.letters.append(_bury_record(record, error, changes))
        folded.rows = changes.rows()
        return folded

    def _apply(self, record: Record, folded: Folded, changes: Changes) -> None:
        """Folds one record: row changes, a void count, or a dead letter."""
        try:
            decoded, effective = ruling(record, self._fences)
        except UnknownVersionError:
            raise
        except CodecError as error:
            if not is_request(record):  # a request has its answer elsewhere
                folded.letters.append(_bury_record(record, error, changes, unreadable=True))
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
            # Bytes of a foreign program, or values impossible for a writer of rftd.
            folded.letters.append(_bury_record(record, error, changes))


_START: Final = Mark(0, GENESIS)
"""Position before a partition's first record."""


def _bury_record(record: Record, error: Exception, changes: Changes, *, unreadable: bool = False) -> RecordDeadLettered:
    """Adds the row of a dead letter, and returns the letter."""
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
