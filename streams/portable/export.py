"""The export of one experiment's records into a file, with the names of all files they need outside of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from rftd.ops.errors import CodecError
from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted
from rftd.streams.events.experience import EvalScored, ExperienceProduced
from rftd.streams.events.experiment import ExperimentAccepted
from rftd.streams.events.registry import Event
from rftd.streams.events.task import TasksOffered, note_offer
from rftd.streams.events.weights import WeightsPublished, WeightsRetired
from rftd.streams.folds.spine import Spine
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.chain import Heads
from rftd.streams.log.effective import ruling
from rftd.streams.log.envelope import Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition
from rftd.streams.portable.container import ArchiveWriter
from rftd.streams.portable.experiment_records import OwnRecords
from rftd.streams.portable.format import PartitionPart, encode_frame


class OutsideNames:
    """Artifacts, checkpoints and weights, stored in files and named by an experiment's effective events."""

    def __init__(self) -> None:
        self.spine = Spine()
        self.artifacts: set[bytes] = set()
        """The sha256 of each array stored as an artifact."""
        self.checkpoints: dict[tuple[int, int], CheckpointCommitted] = {}
        self.weights: dict[tuple[int, int], WeightsPublished] = {}
        self.offers: dict[int, TasksOffered] = {}
        """The largest offer of each serving stage."""
        self._deleted: set[tuple[int, int]] = set()
        self._retired: set[tuple[int, int]] = set()
        self._fences = FenceView()

    def take(self, record: Record) -> None:
        """Adds the files named by a record; foreign records, and those only a newer release can read, name none."""
        try:
            decoded, effective = ruling(record, self._fences)
        except CodecError:
            return
        if effective:
            if record.partition.stream == topics.EXPERIMENTS:
                self.spine.apply(decoded)
            self._effective(decoded.event)

    def undeleted_checkpoints(self) -> list[CheckpointCommitted]:
        """Returns committed checkpoints without a deletion, effective or not, newest first."""
        return [event for key, event in sorted(self.checkpoints.items(), reverse=True) if key not in self._deleted]

    def kept_checkpoints(self) -> list[CheckpointCommitted]:
        """Returns effective checkpoints without a deletion, newest first."""
        # A trainer without its lease may announce a checkpoint of a step missing on the spine, or different there.
        return [
            event
            for event in self.undeleted_checkpoints()
            if self.spine.checksums.get((event.step, event.generation)) == event.checksum
        ]

    def kept_weights(self) -> list[WeightsPublished]:
        """Returns the published weights not retired, oldest first."""
        return [event for key, event in sorted(self.weights.items()) if key not in self._retired]

    def _effective(self, event: Event) -> None:
        match event:
            case ExperienceProduced():
                self._arrays(*event.arrays.values())
            case EvalScored():
                self._arrays(event.rewards, event.tokens, *([] if event.answers is None else [event.answers]))
            case ExperimentAccepted():
                self.artifacts.update(bytes.fromhex(sha256) for sha256 in event.tokenizers if sha256)
            case CheckpointCommitted():
                self.checkpoints[event.step, event.generation] = event
            case CheckpointDeleted():
                self._deleted.add((event.step, event.generation))
            case WeightsPublished():
                self.weights[event.version, event.generation] = event
            case WeightsRetired():
                self._retired.add((event.version, event.generation))
            case TasksOffered():
                note_offer(self.offers, event)
            case _:
                pass

    def _arrays(self, *arrays: Array) -> None:
        self.artifacts.update(
            bytes.fromhex(array.artifact) for array in arrays if array.artifact and not array.is_dropped
        )


async def export_records(
    log: EventLog,
    experiment: UUID,
    archive: ArchiveWriter,
    *,
    until: Heads,
    on_records: Callable[[int], None] = lambda records: None,
) -> tuple[tuple[PartitionPart, ...], OutsideNames]:
    """Writes the experiment's records below `until`, partition by partition, with unchanged bytes."""
    own_records = OwnRecords(log, experiment)
    named = OutsideNames()
    parts = []
    for partition in topics.EVENTS:
        if partition in until:
            partition_part = await _partition(
                own_records, partition, until[partition].next_offset, archive, named, on_records
            )
            if partition_part is not None:
                parts.append(partition_part)
    return tuple(parts), named


async def _partition(
    own_records: OwnRecords,
    partition: Partition,
    end: int,
    archive: ArchiveWriter,
    named: OutsideNames,
    on_records: Callable[[int], None],
) -> PartitionPart | None:
    chunks = own_records.chunks(partition, end)
    chunk = await anext(chunks, None)
    if chunk is None:  # a member is made only for a partition with records: the manifest lists no empty ones
        return None
    count = 0
    first = chunk[0].offset
    with archive.member(f"log/{partition.stream}-{partition.number}") as member:
        while chunk is not None:
            # The chunk as a default value: a closure would see the next one by the time the thread runs.
            def write(records: list[Record] = chunk) -> None:
                for record in records:
                    named.take(record)
                    member.write(encode_frame(record.offset, record.head, record.value))

            await asyncio.to_thread(write)
            count = count + len(chunk)
            last = chunk[-1].offset
            on_records(len(chunk))
            chunk = await anext(chunks, None)
    return PartitionPart(
        stream=partition.stream,
        partition=partition.number,
        records=count,
        first=first,
        last=last,
        member=member.done(),
    )
