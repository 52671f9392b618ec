"""`VoidRecords`: counts records without effect, those of replaced processes apart from those of strangers."""

from __future__ import annotations

from typing import Final

from rftd.ops.metrics import Metrics
from rftd.streams.codec import Decoded
from rftd.streams.events.experiment import Fence
from rftd.streams.fencing import FenceView, Role
from rftd.streams.verify.holders import Holders

REPLACED: Final = "replaced"
FOREIGN: Final = "foreign"


class VoidRecords:
    """The count of records that a fence, or the lack of one, made void."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._holders = Holders()

    def take(self, decoded: Decoded, fences: FenceView, *, effective: bool) -> None:
        """Takes in a record that was held against the fences."""
        if effective and not isinstance(decoded.event, Fence):
            return
        role = Role(decoded.head.experiment, decoded.head.role)
        objection = self._holders.objection(decoded, fences.epoch(decoded.partition, role))
        if not effective:
            cause = FOREIGN if objection else REPLACED
            self._metrics.void_records.labels(decoded.partition.stream, cause).inc()
