"""`VoidRecords`: counts records without effect, separately for replaced processes and for strangers."""

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
"""Maximum number of experiments with remembered foreign records: strangers can name any."""


class ForeignRecords(NamedTuple):
    """The foreign records naming one experiment, since the daemon began."""

    number: int
    newest: str
    """Type, writer and position of the newest foreign record."""


def foreign_wait(records: ForeignRecords) -> Wait:
    """Returns the line of `rftd why` about foreign records: without effect, but worth knowing."""
    count = f"{records.number} record{'s' if records.number > 1 else ''} of strangers"
    description = f"has {count} without effect, seen since this daemon started; the newest is {records.newest}"
    ends = "see rftd verify, and who may write to the topics: docs/production.md"
    return Wait("log", "foreign_records", description, "you", ends, Level.WORKS)


class VoidRecords:
    """Counts of records made void by a fence, or by the lack of one, and of answers to foreign leases."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._holders = Holders()
        self.foreign: Newest[UUID, ForeignRecords] = Newest(_EXPERIMENTS)
        """Foreign records by experiment."""

    def take(self, decoded: Decoded, fences: FenceView, *, effective: bool) -> None:
        """Records the outcome of checking a record against the fences."""
        if effective and not isinstance(decoded.event, Fence):
            return
        role = Role(decoded.head.experiment, decoded.head.role)
        objection = self._holders.objection(decoded, fences.epoch(decoded.partition, role))
        if not effective:
            if objection:
                where = f"{decoded.partition}@{decoded.offset}"
                description = f"{decoded.head.type} of {decoded.head.source!r} at {where}, which {objection}"
                self.note_foreign(decoded.head.experiment, decoded.partition.stream, description)
            else:
                self._metrics.void_records.labels(decoded.partition.stream, REPLACED).inc()

    def note_foreign(self, experiment: UUID | None, stream: str, description: str) -> None:
        """Counts a record certainly written by a stranger, and remembers the newest one of each named experiment."""
        self._metrics.void_records.labels(stream, FOREIGN).inc()
        if experiment is not None:
            before = self.foreign.get(experiment)
            self.foreign.put(experiment, ForeignRecords(1 if before is None else before.number + 1, description))
