"""The beginning of an experiment in the log."""

from __future__ import annotations

from contextlib import aclosing
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError
from rftd.streams.events.experiment import ExperimentAccepted, ExperimentSubmitted
from rftd.streams.log import topics
from rftd.streams.log.effective import effective_records
from rftd.streams.log.envelope import Head
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.split_submission import joined


class ExperimentStart(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of an accepted experiment."""

    spec: ExperimentSpec
    """As it was accepted: a half that came later is known to whoever reads on."""
    positions: dict[Partition, int]
    """The offset of each partition below which nothing of the experiment lies."""


async def beginning_of(log: EventLog, experiment: UUID, *, spine_offset: int = 0) -> ExperimentStart:
    """The beginning of an experiment, read from its spine; `spine_offset` is where it was submitted, or less.

    Raises NotFoundError.
    """
    partition = partition_of(topics.EXPERIMENTS, experiment)
    submitted = -1
    spec = None

    def wanted(head: Head) -> bool:
        return head.experiment == experiment and (head.type.startswith("experiment.") or head.type == "fence")

    records = effective_records(log, partition, FenceView(), start=spine_offset, wanted=wanted)
    # Closed at once: a generator that is left early would otherwise hold its place until the collector comes.
    async with aclosing(records):
        async for decoded in records:
            if isinstance(decoded.event, ExperimentSubmitted):
                if spec is None:
                    submitted = decoded.offset
                    spec = decoded.event.spec
                elif isinstance(both := joined(spec, decoded.event.spec), ExperimentSpec):
                    spec = both
            if isinstance(decoded.event, ExperimentAccepted) and spec is not None:
                start = {Partition(ref.stream, ref.partition): ref.next_offset for ref in decoded.event.start}
                # The submission lies below the heads that were noted when it was accepted, and is the first record.
                start[partition] = submitted
                return ExperimentStart(spec=spec, positions=start)
    # The hint may be wrong: all of the spine decides that an experiment is unknown.
    if spine_offset:
        return await beginning_of(log, experiment)
    raise NotFoundError(f"the log knows no accepted experiment {experiment}", where=str(partition))


async def start_of_experiment(log: EventLog, experiment: UUID) -> dict[Partition, int]:
    """The offset of each partition below which nothing of the experiment lies. Raises NotFoundError."""
    return (await beginning_of(log, experiment)).positions
