"""`VoidRecords`: counts records without effect, those of replaced processes apart from those of strangers."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from rftd.daemon.run.why.wait import Wait
from rftd.ops.metrics import Metrics
from rftd.ops.words import Level
from rftd.streams.events.experiment import Fence
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.fencing import FenceView, Role
from rftd.streams.log.newest import Newest
from rftd.streams.verify.holders import Holders

REPLACED: Final = "replaced"
FOREIGN: Final = "foreign"


_EXPERIMENTS: Final = 1024
"""The experiments whose foreign records are remembered: strangers can name any."""


class ForeignRecords(NamedTuple):
    """The records of strangers that name one experiment, since the daemon began."""

    number: int
    newest: str
    """Type, writer and place in the log of the newest foreign record."""


def foreign_wait(records: ForeignRecords) -> Wait:
    """The line of `rftd why` about strangers' records: they change nothing, and somebody should know."""
    count = f"{records.number} record{'s' if records.number > 1 else ''} of strangers"
    what = f"has {count} that count nowhere, seen since this daemon began; the newest is {records.newest}"
    ends = "see rftd verify, and who may write to the topics: docs/production.md"
    return Wait("log", "foreign_records", what, "you", ends, Level.WORKS)


class VoidRecords:
    """The count of records that a fence, or the lack of one, made void, and of answers to leases of others."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._holders = Holders()
        self.foreign: Newest[UUID, ForeignRecords] = Newest(_EXPERIMENTS)
        """Those of strangers, by experiment."""

    def take(self, decoded: Decoded, fences: FenceView, *, effective: bool) -> None:
        """Takes in a record that was held against the fences."""
        if effective and not isinstance(decoded.event, Fence):
            return
        role = Role(decoded.head.experiment, decoded.head.role)
        objection = self._holders.objection(decoded, fences.epoch(decoded.partition, role))
        if not effective:
            if objection:
                where = f"{decoded.partition}@{decoded.offset}"
                what = f"{decoded.head.type} of {decoded.head.source!r} at {where}, which {objection}"
                self.note_foreign(decoded.head.experiment, decoded.partition.stream, what)
            else:
                self._metrics.void_records.labels(decoded.partition.stream, REPLACED).inc()

    def note_foreign(self, experiment: UUID | None, stream: str, what: str) -> None:
        """Counts a record that a stranger must have written."""
        self._metrics.void_records.labels(stream, FOREIGN).inc()
        if experiment is not None:
            before = self.foreign.get(experiment)
            self.foreign.put(experiment, ForeignRecords(1 if before is None else before.number + 1, what))
