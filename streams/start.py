"""Where an experiment begins in the log."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError
from rftd.streams import topics
from rftd.streams.deadletters import head_of, understood_with
from rftd.streams.events.experiment import ExperimentAccepted, ExperimentSubmitted
from rftd.streams.fencing import FenceView
from rftd.streams.log import EventLog
from rftd.streams.spec import ExperimentSpec
from rftd.streams.topics import Partition, partition_of


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """How an accepted experiment begins."""

    spec: ExperimentSpec
    positions: dict[Partition, int]
    """The offset of each partition below which nothing of the experiment lies."""


async def beginning_of(log: EventLog, experiment: UUID, *, spine_offset: int = 0) -> Beginning:
    """Reads the spine from `spine_offset` on, where whoever knows better than 0 saw it submitted.

    Raises NotFoundError.
    """
    partition = partition_of(topics.EXPERIMENTS, experiment)
    offset = spine_offset
    submitted = -1
    spec = None
    fences = FenceView()
    while records := await log.read(partition, offset):
        for record in records:
            offset = record.offset + 1
            head = head_of(record)
            if head is None or head.experiment != experiment:
                continue
            if not (head.type.startswith("experiment.") or head.type == "fence"):
                continue
            decoded = understood_with(head, record)
            if decoded is None or not fences.admit(partition, head, decoded.event):
                continue
            if isinstance(decoded.event, ExperimentSubmitted) and spec is None:
                submitted, spec = record.offset, decoded.event.spec
            if isinstance(decoded.event, ExperimentAccepted) and spec is not None:
                start = {Partition(ref.stream, ref.partition): ref.next_offset for ref in decoded.event.start}
                start[partition] = submitted
                return Beginning(spec=spec, positions=start)
    if spine_offset:
        return await beginning_of(log, experiment)
    raise NotFoundError(f"the log knows no accepted experiment {experiment}", where=str(partition))


async def start_of_experiment(log: EventLog, experiment: UUID) -> dict[Partition, int]:
    """The offset of each partition below which nothing of the experiment lies. Raises NotFoundError."""
    return (await beginning_of(log, experiment)).positions
