"""Where an experiment begins in the log."""

from __future__ import annotations

from contextlib import aclosing
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError
from rftd.streams import topics
from rftd.streams.effective import effective_records
from rftd.streams.envelope import Head
from rftd.streams.events.experiment import ExperimentAccepted, ExperimentSubmitted
from rftd.streams.fencing import FenceView
from rftd.streams.log import EventLog
from rftd.streams.spec import ExperimentSpec
from rftd.streams.topics import Partition, partition_of


class ExperimentStart(msgspec.Struct, frozen=True, kw_only=True):
    """How an accepted experiment begins."""

    spec: ExperimentSpec
    positions: dict[Partition, int]
    """The offset of each partition below which nothing of the experiment lies."""


async def beginning_of(log: EventLog, experiment: UUID, *, spine_offset: int = 0) -> ExperimentStart:
    """Reads the spine from `spine_offset` on, where whoever knows better than 0 saw it submitted.

    Raises NotFoundError.
    """
    partition = partition_of(topics.EXPERIMENTS, experiment)
    submitted = -1
    spec = None

    def wanted(head: Head) -> bool:
        return head.experiment == experiment and (head.type.startswith("experiment.") or head.type == "fence")

    records = effective_records(log, partition, FenceView(), start=spine_offset, wanted=wanted)
    async with aclosing(records):
        async for decoded in records:
            if isinstance(decoded.event, ExperimentSubmitted) and spec is None:
                submitted = decoded.offset
                spec = decoded.event.spec
            if isinstance(decoded.event, ExperimentAccepted) and spec is not None:
                start = {Partition(ref.stream, ref.partition): ref.next_offset for ref in decoded.event.start}
                start[partition] = submitted
                return ExperimentStart(spec=spec, positions=start)
    if spine_offset:
        return await beginning_of(log, experiment)
    raise NotFoundError(f"the log knows no accepted experiment {experiment}", where=str(partition))


async def start_of_experiment(log: EventLog, experiment: UUID) -> dict[Partition, int]:
    """The offset of each partition below which nothing of the experiment lies. Raises NotFoundError."""
    return (await beginning_of(log, experiment)).positions
