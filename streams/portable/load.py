"""Import of an export into a log: the file is checked completely first, then merged, with positions rewritten.

An import may be repeated at any time: records already in the log are recognised, and the missing ones are appended
after them.
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
"""Maximum attempts of one append."""
_WAIT_S: Final = 0.1
"""Seconds before the second attempt; each later wait is twice as long."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an import, in numbers of records."""

    appended: int
    """Number of appended records."""
    present: int
    """Number of records already in the log."""
    later: int
    """Number of the experiment's records in the log beyond the export, where the experiment continued."""


class Checked(msgspec.Struct, kw_only=True):
    """What a completely checked export contains."""

    spec: ExperimentSpec
    checkpoints: dict[str, set[tuple[str, str]]]
    """(path, sha256) of each file, by folder of a checkpoint.committed."""
    kept_checkpoints: dict[tuple[int, int], str]
    """The folders of checkpoints not deleted, by (step, generation)."""
    weights: set[str]
    """Folders named in weights.published events."""
    kept_weights: dict[tuple[int, int], str]
    """The folders of published weights not retired, by (version, generation)."""
    parent: UUID | None
    """Parent of a forked experiment; None otherwise."""
    removed: bool
    """True if the experiment was removed, so that its folder may belong to another one."""
    offers: dict[int, TasksOffered]
    """The largest offer of each serving stage."""


def check(archive: ArchiveReader) -> Checked:
    """Reads the file completely. Raises ArchiveError unless each member matches its sha256 and the records fit
    together. Blocks.
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
        for exported in batch:
            _rewritten(exported, moved)
            match exported.event:
                case ExperimentSubmitted():
                    joined_spec = exported.event.spec if spec is None else joined(spec, exported.event.spec)
                    spec = joined_spec if isinstance(joined_spec, ExperimentSpec) else spec
                case ExperimentForked():
                    parent = parent or exported.event.parent
                case CheckpointCommitted():
                    files = ((file.path, file.sha256) for file in exported.event.files)
                    checkpoints.setdefault(exported.event.path, set()).update(files)
                    kept_checkpoints[exported.event.step, exported.event.generation] = exported.event.path
                case CheckpointDeleted():
                    kept_checkpoints.pop((exported.event.step, exported.event.generation), None)
                case ExperimentRemoved():
                    removed = True
                case WeightsPublished():
                    weights.add(exported.event.path)
                    if exported.event.method == "checkpoint":
                        kept_weights[exported.event.version, exported.event.generation] = exported.event.path
                case WeightsRetired():
                    kept_weights.pop((exported.event.version, exported.event.generation), None)
                case TasksOffered():
                    note_offer(offers, exported.event)
                case _:
                    pass
        # Each position to itself: only the check of an import remains, that every named record exists.
        for exported in batch:
            places.add(exported.partition, exported.offset, exported.offset)
    for file_part in archive.manifest.files:
        for _ in archive.open(file_part.member).chunks():  # reading a member to its end checks its sha256
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
    """Compares an export with the log, with paths changed by `folders`.

    Raises ConflictError if the log has another history under the experiment's id.
    """
    total = sum(partition_part.records for partition_part in archive.manifest.partitions)
    return await compare(log, archive.manifest.experiment, _sources(archive, folders), total)


async def note_import(log: EventLog, archive: ArchiveReader, checked: Checked, clock: Clock) -> None:
    """Appends the experiment.imported listing files missing in the export; for a repeated import of one
    file only once.
    """
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
    """Appends the exported records that `present` does not have. The file must have passed `check`.

    `on_records` is called with the number of records appended each time. Raises LogFullError without disk space.
    """
    merge = Merge(archive.manifest.experiment, _sources(archive, folders), present.places)
    appended = 0
    while batch := await asyncio.to_thread(merge.next_batch):
        chains = await _chains(log, batch, present.places)
        moved = Moved(present.places, present.before, chains)
        drafts = await asyncio.to_thread(_drafts, batch, moved)
        positions = await _append(log, drafts, clock)
        # The log answers a known id with its first position: one in another partition is another experiment's event.
        for exported, position in zip(batch, positions, strict=True):
            if position.partition != exported.partition:
                raise ConflictError(
                    f"event {exported.head.id} is already in the destination, at {position}",
                    fix="the destination holds another experiment with the same events",
                )
            present.places.add(exported.partition, exported.offset, position.offset)
        appended += len(batch)
        on_records(len(batch))
    return Loaded(appended=appended, present=present.records, later=present.later)


def _sources(archive: ArchiveReader, folders: Folders) -> dict[Partition, Iterator[ExportedRecord]]:
    return {
        Partition(partition_part.stream, partition_part.partition): entries(archive, partition_part, folders)
        for partition_part in archive.manifest.partitions
    }


def _drafts(batch: Sequence[ExportedRecord], moved: Moved) -> list[Draft]:
    return [Draft(exported.partition, exported.head.id, *_rewritten(exported, moved)) for exported in batch]


def _rewritten(exported: ExportedRecord, moved: Moved) -> tuple[bytes, bytes]:
    try:
        return exported.encoded(rewrite(exported.event, moved))
    except ArchiveError as error:
        raise ArchiveError(
            f"{exported.head.type}: {error.what}",
            where=f"{exported.partition}@{exported.offset}",
            fix="run rftd verify on the log of the export",
        ) from error


async def _chains(log: EventLog, batch: Sequence[ExportedRecord], places: Places) -> dict[tuple[Partition, int], bytes]:
    """Reads the destination's chains at the new positions of the batch's remembered heads."""
    ends = set()
    for ref in _remembered(batch):
        partition = Partition(ref.stream, ref.partition)
        if (end := places.bound(partition, ref.next_offset)) is not None:
            ends.add((partition, end))
    if not ends:
        return {}
    heads: Heads = await log.heads()
    chains: dict[tuple[Partition, int], bytes] = {}
    for partition, end in ends:
        if partition in heads and heads[partition].next_offset == end:
            chains[partition, end] = heads[partition].chain
            continue
        records = await log.read(partition, end - 1, max_records=1)
        if records and records[0].offset == end - 1:
            chains[partition, end] = records[0].chain
    return chains


def _remembered(batch: Sequence[ExportedRecord]) -> Iterator[HeadRef]:
    for exported in batch:
        if isinstance(exported.event, Fence | CheckpointCommitted):
            yield from exported.event.heads


async def _append(log: EventLog, drafts: Sequence[Draft], clock: Clock) -> list[Position]:
    """Appends the drafts, retrying them after an unknown outcome: the log knows their ids."""
    for attempt in range(RETRIES):  # doubling waits, 13 s in all: a restarting daemon is back by then
        try:
            return await log.append(drafts)
        except LogFullError as error:
            raise LogFullError(
                error.what,
                where=error.where,
                fix="free some space and repeat the import: it continues there",
            ) from error
        except UnreachableError:
            if attempt == RETRIES - 1:
                raise
            await clock.sleep(_WAIT_S * 2**attempt)
    raise AssertionError


BATCH_RECORDS: Final = 1024
"""Number of records per append: each costs a commit, and its records are in memory twice."""
BATCH_SIZE_BYTES: Final = limits.FETCH_SIZE_BYTES
"""Maximum bytes of records per append."""


class Merge:
    """Puts exported records into an order in which every record follows the records it names.

    The caller appends a batch and reports its positions before requesting the next. The spine up to
    `experiment.accepted` comes first and alone: an experiment has nothing below its `start`.
    """

    def __init__(
        self,
        experiment: UUID,
        sources: Mapping[Partition, Iterator[ExportedRecord]],
        places: Places,
        *,
        records: int = BATCH_RECORDS,
    ) -> None:
        """Begins the merge; records with a position in `places` are skipped."""
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
        """Returns the next records that may be appended; empty at the end. Raises ArchiveError if no order exists."""
        if not self._opened:
            return self._opening()
        batch: list[ExportedRecord] = []
        size_bytes = 0
        # The first offset without a position, by partition; records of this batch have no position yet.
        pending = {partition: exported.offset for partition, exported in self._heads.items()}
        ready = [
            (exported.head.time_ns, partition)
            for partition, exported in self._heads.items()
            if self._free(exported, pending)
        ]
        heapq.heapify(ready)
        while ready and len(batch) < self._records and size_bytes < BATCH_SIZE_BYTES:
            _, partition = heapq.heappop(ready)
            exported = self._heads[partition]
            batch.append(exported)
            size_bytes += len(exported.head_bytes) + len(exported.value)
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
        exported = next(self._sources[partition], None)
        if exported is None:
            self._heads.pop(partition, None)
            return None
        needs = NeededRecords()
        rewrite(exported.event, needs)
        self._heads[partition] = exported
        self._needs[partition] = needs.wanted
        return exported

    def _free(self, exported: ExportedRecord, pending: Mapping[Partition, int]) -> bool:
        needs = self._needs[exported.partition]
        return all(partition not in pending or pending[partition] >= end for partition, end in needs.items())

    def _stuck(self, pending: Mapping[Partition, int]) -> ArchiveError:
        # Two records naming each other, impossible in any log: the file was made by hand, or from a damaged log.
        partition, record = min(self._heads.items(), key=lambda item: item[1].head.time_ns)
        waits = [
            f"{named_partition}@{pending[named_partition]}"
            for named_partition, end in self._needs[partition].items()
            if named_partition in pending and pending[named_partition] < end
        ]
        return ArchiveError(
            f"no order fits: {record.head.type} at {partition}@{record.offset} names what lies at or after {waits[0]}, "
            "which in turn waits for it",
            fix="run rftd verify on the log of the export",
        )
