"""Where an experiment begins in the log: its specification, and the offsets from which readers start."""

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
    """The specification of an accepted experiment, and the offsets at which readers of its records start."""

    spec: ExperimentSpec
    """Specification as accepted; a half submitted later is not included."""
    positions: dict[Partition, int]
    """Offset of each partition below which the experiment has no record."""


async def beginning_of(log: EventLog, experiment: UUID, *, spine_offset: int = 0) -> ExperimentStart:
    """Reads the beginning of an experiment from its spine; `spine_offset` is the submission's offset, or lower.

    Raises NotFoundError.
    """
    partition = partition_of(topics.EXPERIMENTS, experiment)
    submitted = -1
    spec = None

    def is_wanted(head: Head) -> bool:
        return head.experiment == experiment and (head.type.startswith("experiment.") or head.type == "fence")

    records = effective_records(log, partition, FenceView(), start=spine_offset, is_wanted=is_wanted)
    # Closed at once: an abandoned generator would otherwise stay open until the garbage collector runs.
    async with aclosing(records):
        async for decoded in records:
            if isinstance(decoded.event, ExperimentSubmitted):
                if spec is None:
                    submitted = decoded.offset
                    spec = decoded.event.spec
                elif isinstance(joined_spec := joined(spec, decoded.event.spec), ExperimentSpec):
                    spec = joined_spec
            if isinstance(decoded.event, ExperimentAccepted) and spec is not None:
                start = {Partition(ref.stream, ref.partition): ref.next_offset for ref in decoded.event.start}
                # The submission lies below the heads noted at acceptance, and is the first record.
                start[partition] = submitted
                return ExperimentStart(spec=spec, positions=start)
    # The hint may be wrong: only the whole spine proves an experiment unknown.
    if spine_offset:
        return await beginning_of(log, experiment)
    raise NotFoundError(f"the log knows no accepted experiment {experiment}", where=str(partition))


async def start_of_experiment(log: EventLog, experiment: UUID) -> dict[Partition, int]:
    """Returns the offset of each partition with no record of the experiment below it. Raises NotFoundError."""
    return (await beginning_of(log, experiment)).positions
