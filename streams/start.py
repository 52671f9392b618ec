"""Where an experiment begins in the log."""

from __future__ import annotations

from uuid import UUID

from rftd.ops.errors import NotFoundError
from rftd.streams import topics
from rftd.streams.deadletters import head_of, understood_with
from rftd.streams.events.experiment import ExperimentAccepted, ExperimentSubmitted
from rftd.streams.log import EventLog
from rftd.streams.topics import Partition, partition_of


async def start_of_experiment(log: EventLog, experiment: UUID) -> dict[Partition, int]:
    """The offset of each partition below which nothing of the experiment lies. Raises NotFoundError."""
    partition = partition_of(topics.EXPERIMENTS, experiment)
    offset, submitted = 0, -1
    while records := await log.read(partition, offset):
        for record in records:
            offset = record.offset + 1
            head = head_of(record)
            if head is None or head.experiment != experiment:
                continue
            decoded = understood_with(head, record)
            if decoded is None:
                continue
            if isinstance(decoded.event, ExperimentSubmitted) and submitted < 0:
                submitted = record.offset
            if isinstance(decoded.event, ExperimentAccepted):
                start = {Partition(ref.stream, ref.partition): ref.next_offset for ref in decoded.event.start}
                start[partition] = submitted
                return start
    raise NotFoundError(f"the log knows no accepted experiment {experiment}", where=str(partition))
