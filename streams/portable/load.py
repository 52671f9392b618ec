"""The import of a file's records into a log: checked as a whole first, then merged, with their places rewritten.

An import may be repeated at any time: what the log holds already is recognised, and the rest is appended after it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import ArchiveError, ConflictError, LogFullError, UnreachableError
from rftd.ops.ids import SystemIds, derive
from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted
from rftd.streams.events.experiment import (
    ExperimentAccepted,
    ExperimentForked,
    ExperimentImported,
    ExperimentRemoved,
    ExperimentSubmitted,
    Fence,
    HeadRef,
)
from rftd.streams.events.task import TasksOffered, note_offer
from rftd.streams.events.weights import WeightsPublished, WeightsRetired
from rftd.streams.log import topics
from rftd.streams.log.chain import Heads
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.portable.container import ArchiveReader
from rftd.streams.portable.folders import Folders
from rftd.streams.portable.positions import Moved, NeededRecords, Places, rewrite
from rftd.streams.portable.present import PresentRecords, compare
from rftd.streams.portable.source import ExportedRecord, check_partitions, entries
from rftd.streams.spec.spec import ExperimentSpec
from rftd.streams.spec.split_submission import joined

RETRIES: Final = 8
_WAIT_S: Final = 0.1


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an import."""

    appended: int
    """Records that were appended."""
    present: int
    """Records that the log held already."""
    later: int
    """Records of the experiment that the log holds beyond the file: it went on there."""


class Checked(msgspec.Struct, kw_only=True):
    """The content of a whole file, as it was exported."""

    spec: ExperimentSpec
    checkpoints: dict[str, set[tuple[str, str]]]
    """(path, sha256) of each file of each folder that a checkpoint.committed names."""
    kept_checkpoints: dict[tuple[int, int], str]
    """The folders of the checkpoints that were not deleted, by (step, generation)."""
    weights: set[str]
    """Folders that a weights.published names."""
    kept_weights: dict[tuple[int, int], str]
    """The folders of the published weights that were not retired, by (version, generation)."""
    parent: UUID | None
    """The experiment that it is a fork of."""
    removed: bool
    """True if its files were removed, so that its folder may be another's by now."""
    offers: dict[int, TasksOffered]
    """The largest offer of each stage that serves."""


def check(archive: ArchiveReader) -> Checked:
    """Reads the whole file. Raises ArchiveError unless each member matches its sha256 and the records fit together.

    Blocks.
    """
    check_partitions(archive)
    places = Places()
    folders = Folders()
    merge = Merge(archive.manifest.experiment, _sources(archive, folders), places)
    moved = Moved(places, {}, {})
    spec = None
    parent = None
    checkpoints: dict[str, set[tuple[str, str]]] = {}
    kept_checkpoints: dict[tuple[int, int], str] = {}
    weights: set[str] = set()
    kept_weights: dict[tuple[int, int], str] = {}
    removed = False
    offers: dict[int, TasksOffered] = {}
    while batch := merge.next_batch():
        for entry in batch:
            _rewritten(entry, moved)
            match entry.event:
                case ExperimentSubmitted():
                    both = entry.event.spec if spec is None else joined(spec, entry.event.spec)
                    spec = both if isinstance(both, ExperimentSpec) else spec
                case ExperimentForked():
                    parent = parent or entry.event.parent
                case CheckpointCommitted():
                    files = ((file.path, file.sha256) for file in entry.event.files)
                    checkpoints.setdefault(entry.event.path, set()).update(files)
                    kept_checkpoints[entry.event.step, entry.event.generation] = entry.event.path
                case CheckpointDeleted():
                    kept_checkpoints.pop((entry.event.step, entry.event.generation), None)
                case ExperimentRemoved():
                    removed = True
                case WeightsPublished():
                    weights.add(entry.event.path)
                    if entry.event.method == "checkpoint":
                        kept_weights[entry.event.version, entry.event.generation] = entry.event.path
                case WeightsRetired():
                    kept_weights.pop((entry.event.version, entry.event.generation), None)
                case TasksOffered():
                    note_offer(offers, entry.event)
                case _:
                    pass
        # Each place to itself: of an import only the check is left that every record that is named is there.
        for entry in batch:
            places.add(entry.partition, entry.offset, entry.offset)
    for part in archive.manifest.files:
        for _ in archive.open(part.member).chunks():  # reading a member to its end checks its sha256
            pass
    if spec is None:
        raise ArchiveError("it holds no experiment.submitted", where=str(archive.path), fix="export anew")
    return Checked(
        spec=spec,
        checkpoints=checkpoints,
        kept_checkpoints=kept_checkpoints,
        weights=weights,
        kept_weights=kept_weights,
        parent=parent,
        removed=removed,
        offers=offers,
    )


async def look(log: EventLog, archive: ArchiveReader, folders: Folders) -> PresentRecords:
    """The part of the file that the log holds. Raises ConflictError for another history under the experiment's id."""
    total = sum(part.records for part in archive.manifest.partitions)
    return await compare(log, archive.manifest.experiment, _sources(archive, folders), total)


async def note_import(log: EventLog, archive: ArchiveReader, checked: Checked, clock: Clock) -> None:
    """Appends what the file left out. A repeated import of the same file says nothing new."""
    manifest = archive.manifest
    enclosed = {file.folder for file in manifest.files}
    event = ExperimentImported(
        release=manifest.rftd,
        exported=manifest.created,
        checkpoints_left_out=_absent(checked.kept_checkpoints, enclosed),
        weights_left_out=_absent(checked.kept_weights, enclosed),
    )
    id = derive(manifest.experiment, "imported", sha256(msgspec.msgpack.encode(event)).hexdigest())
    writer = Writer(source="import", clock=clock, ids=SystemIds(clock))
    await _append(log, [writer.draft(event, experiment=manifest.experiment, id=id)], clock)


def _absent(folders: Mapping[tuple[int, int], str], enclosed: Collection[str]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(key for key, folder in folders.items() if folder not in enclosed))


async def load(
    log: EventLog,
    archive: ArchiveReader,
    folders: Folders,
    present: PresentRecords,
    *,
    clock: Clock,
    on_records: Callable[[int], None] = lambda records: None,
) -> Loaded:
    """Appends what `present` lacks. The file must have passed `check`. Raises LogFullError without space."""
    merge = Merge(archive.manifest.experiment, _sources(archive, folders), present.places)
    appended = 0
    while batch := await asyncio.to_thread(merge.next_batch):
        chains = await _chains(log, batch, present.places)
        moved = Moved(present.places, present.before, chains)
        drafts = await asyncio.to_thread(_drafts, batch, moved)
        positions = await _append(log, drafts, clock)
        # The log answers a known id with its first place: one in another partition is another experiment's event.
        for entry, position in zip(batch, positions, strict=True):
            if position.partition != entry.partition:
                raise ConflictError(
                    f"event {entry.head.id} lies in the destination already, at {position}",
                    fix="the destination holds another experiment with the same events",
                )
            present.places.add(entry.partition, entry.offset, position.offset)
        appended += len(batch)
        on_records(len(batch))
    return Loaded(appended=appended, present=present.records, later=present.later)


def _sources(archive: ArchiveReader, folders: Folders) -> dict[Partition, Iterator[ExportedRecord]]:
    return {
        Partition(part.stream, part.partition): entries(archive, part, folders) for part in archive.manifest.partitions
    }


def _drafts(batch: Sequence[ExportedRecord], moved: Moved) -> list[Draft]:
    return [Draft(entry.partition, entry.head.id, *_rewritten(entry, moved)) for entry in batch]


def _rewritten(entry: ExportedRecord, moved: Moved) -> tuple[bytes, bytes]:
    try:
        return entry.encoded(rewrite(entry.event, moved))
    except ArchiveError as error:
        raise ArchiveError(
            f"{entry.head.type}: {error.what}",
            where=f"{entry.partition}@{entry.offset}",
            fix="run rftd verify on the log that it was exported from",
        ) from error


async def _chains(log: EventLog, batch: Sequence[ExportedRecord], places: Places) -> dict[tuple[Partition, int], bytes]:
    """The destination's chains at the places where the batch's remembered heads lie now."""
    wanted = set()
    for ref in _remembered(batch):
        partition = Partition(ref.stream, ref.partition)
        if (end := places.bound(partition, ref.next_offset)) is not None:
            wanted.add((partition, end))
    if not wanted:
        return {}
    heads: Heads = await log.heads()
    found: dict[tuple[Partition, int], bytes] = {}
    for partition, end in wanted:
        if partition in heads and heads[partition].next_offset == end:
            found[partition, end] = heads[partition].chain
            continue
        records = await log.read(partition, end - 1, max_records=1)
        if records and records[0].offset == end - 1:
            found[partition, end] = records[0].chain
    return found


def _remembered(batch: Sequence[ExportedRecord]) -> Iterator[HeadRef]:
    for entry in batch:
        if isinstance(entry.event, Fence | CheckpointCommitted):
            yield from entry.event.heads


async def _append(log: EventLog, drafts: Sequence[Draft], clock: Clock) -> list[Position]:
    """Tries the same drafts again where the outcome is unknown: the log knows their ids."""
    for attempt in range(RETRIES):  # doubling waits, 13 s in all: a daemon that restarts is back by then
        try:
            return await log.append(drafts)
        except LogFullError as error:
            raise LogFullError(
                error.what, where=error.where, fix="free some space and repeat the import: it goes on where it stopped"
            ) from error
        except UnreachableError:
            if attempt == RETRIES - 1:
                raise
            await clock.sleep(_WAIT_S * 2**attempt)
    raise AssertionError


BATCH_RECORDS: Final = 1024
"""The records of one append: each batch costs a commit, and is held in memory twice."""
BATCH_SIZE_BYTES: Final = limits.FETCH_SIZE_BYTES


class Merge:
    """Batches of records in such an order. The caller appends one and says where it landed, then asks for the next.

    The spine up to `experiment.accepted` comes first and alone: an experiment has nothing below its `start`.
    """

    def __init__(
        self,
        experiment: UUID,
        sources: Mapping[Partition, Iterator[ExportedRecord]],
        places: Places,
        *,
        records: int = BATCH_RECORDS,
    ) -> None:
        """Leaves out the records that have a place already."""
        self._places = places
        self._sources = dict(sources)
        self._records = records
        self._heads: dict[Partition, ExportedRecord] = {}
        self._needs: dict[Partition, Mapping[Partition, int]] = {}
        self._spine: Final = partition_of(topics.EXPERIMENTS, experiment)
        self._opened = False
        for partition in self._sources:
            for _ in range(places.count(partition)):
                self._opened |= isinstance(next(self._sources[partition]).event, ExperimentAccepted)
            self._advance(partition)

    def next_batch(self) -> Sequence[ExportedRecord]:
        """The records that can be appended now, in order; none at the end. Raises ArchiveError if no order exists."""
        if not self._opened:
            return self._opening()
        batch: list[ExportedRecord] = []
        size_bytes = 0
        # The offsets at which the records without a place begin; those of this batch have none yet.
        pending = {partition: entry.offset for partition, entry in self._heads.items()}
        ready = [
            (entry.head.time_ns, partition) for partition, entry in self._heads.items() if self._free(entry, pending)
        ]
        heapq.heapify(ready)
        while ready and len(batch) < self._records and size_bytes < BATCH_SIZE_BYTES:
            _, partition = heapq.heappop(ready)
            entry = self._heads[partition]
            batch.append(entry)
            size_bytes += len(entry.head_bytes) + len(entry.value)
            following = self._advance(partition)
            if following is not None and self._free(following, pending):
                heapq.heappush(ready, (following.head.time_ns, partition))
        if not batch and self._heads:
            raise self._stuck(pending)
        return batch

    def _opening(self) -> Sequence[ExportedRecord]:
        batch: list[ExportedRecord] = []
        while not self._opened and self._spine in self._heads:
            batch.append(self._heads[self._spine])
            self._opened = isinstance(batch[-1].event, ExperimentAccepted)
            self._advance(self._spine)
            if len(batch) >= self._records:
                return batch
        self._opened = True
        return batch or self.next_batch()

    def _advance(self, partition: Partition) -> ExportedRecord | None:
        entry = next(self._sources[partition], None)
        if entry is None:
            self._heads.pop(partition, None)
            return None
        needs = NeededRecords()
        rewrite(entry.event, needs)
        self._heads[partition] = entry
        self._needs[partition] = needs.wanted
        return entry

    def _free(self, entry: ExportedRecord, pending: Mapping[Partition, int]) -> bool:
        needs = self._needs[entry.partition]
        return all(partition not in pending or pending[partition] >= end for partition, end in needs.items())

    def _stuck(self, pending: Mapping[Partition, int]) -> ArchiveError:
        # Two records that name each other, which no log can hold: the file was made by hand, or of a damaged log.
        partition, entry = min(self._heads.items(), key=lambda item: item[1].head.time_ns)
        waits = [
            f"{other}@{pending[other]}"
            for other, end in self._needs[partition].items()
            if other in pending and pending[other] < end
        ]
        return ArchiveError(
            f"no order fits: {entry.head.type} at {partition}@{entry.offset} names what lies at or after {waits[0]}, "
            "which in turn waits for it",
            fix="run rftd verify on the log that it was exported from",
        )
