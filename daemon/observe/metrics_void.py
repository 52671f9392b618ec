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
"""Metric label of records by processes whose lease another process has taken over."""
FOREIGN: Final = "foreign"
"""Metric label of records by strangers."""


_EXPERIMENTS: Final = 1024
"""Maximum number of experiments with remembered foreign records: strangers can name any."""


class ForeignRecords(NamedTuple):
    """Records by strangers that name one experiment, counted since the daemon's start."""

    number: int
    """Number of these records."""
    newest: str
    """Type, writer and position of the newest foreign record."""


def foreign_wait(records: ForeignRecords) -> Wait:
    """Returns the line of `rftd why` about foreign records: without effect, but worth knowing."""
    count = f"{records.number} record{'s' if records.number > 1 else ''} of strangers"
    description = f"has {count} without effect, seen since this daemon started; the newest is {records.newest}"
    ends = "see rftd verify, and who may write to the topics: docs/production.md"
    return Wait("log", "foreign_records", description, "you", ends, Level.WORKS)


class VoidRecords:
    """Counts of records without effect: by replaced processes, and by strangers."""

    def __init__(self, metrics: Metrics) -> None:
        """Counts into `metrics`."""
        self._metrics = metrics
        self._holders = Holders()
        """Holder of each role's lease, to tell replaced processes from strangers."""
        self.foreign: Newest[UUID, ForeignRecords] = Newest(_EXPERIMENTS)
        """Foreign records by experiment."""

    def take(self, decoded: Decoded, fences: FenceView, *, effective: bool) -> None:
        """Records whether a decoded record was effective by the fences."""
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
