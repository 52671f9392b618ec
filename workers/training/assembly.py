"""A plan, with the records that it names, as a batch of arrays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec
import numpy as np

from rftd.ops import limits
from rftd.ops.errors import DataError, LogLossError, RowError
from rftd.ops.logs import logger
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.batch import BatchPlanned, GroupRef
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import GroupClosed
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_as, decode_head
from rftd.streams.log.envelope import Position, Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.newest import Newest
from rftd.streams.log.topics import Partition
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.datasets.recorded import RECORDED
from rftd.workers.datasets.stage_tokenizer import dataset_tokenizer
from rftd.workers.datasets.table_copies import experiment_copies
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.datasets.train_row import TrainRow, row_faults
from rftd.workers.learning.algorithms.advantages.registry import advantage_function
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.training.group_samples import BatchExperience, group_samples
from rftd.workers.training.recorded import RecordedGroups


class Reuse:
    """A cache of the log's records, which never change; the oldest go first."""

    def __init__(self, most_size_bytes: int = limits.REUSED_RECORDS_SIZE_BYTES) -> None:
        self._most = most_size_bytes
        self._records: dict[Position, Record] = {}
        self.size_bytes = 0
        """The size of the kept records."""

    def among(self, wanted: Collection[Position]) -> dict[Position, Record]:
        """The wanted records that are in the cache."""
        if not self._records:
            return {}
        return {place: self._records[place] for place in wanted if place in self._records}

    def note(self, plan: BatchPlanned, records: Mapping[Position, Record]) -> None:
        """Keeps of a plan's records those of experiences that may be used again, and their groups; drops the others."""
        # Without reuse no record is read twice, and keeping any would cost memory for nothing.
        if plan.max_uses == 1:
            return
        groups = [Position(Partition(topics.TASKS, group.partition), group.offset) for group in plan.groups]
        for item in plan.experiences:
            place = Position(Partition(topics.EXPERIENCES, item.partition), item.offset)
            self._drop(place)
            # 0 means without end. Kept anew, not touched: dropping first moves the record to the end of the queue.
            if not plan.max_uses or item.use < plan.max_uses:
                self._keep(place, records[place])
                self._keep(groups[item.group], records[groups[item.group]])
        # A dictionary keeps the order of insertion, so its first key is the oldest record.
        while self.size_bytes > self._most:
            self._drop(next(iter(self._records)))

    def _keep(self, place: Position, record: Record) -> None:
        if place not in self._records:
            self._records[place] = record
            self.size_bytes += len(record.head) + len(record.value)

    def _drop(self, place: Position) -> None:
        record = self._records.pop(place, None)
        if record is not None:
            self.size_bytes -= len(record.head) + len(record.value)


READ_ALONG_RECORDS: Final = 16
"""The longest gap, in records, within one read: what lies between is read along."""


_TRACED_BATCHES: Final = 8
"""Two are under way at most; more are those of steps that were never taken."""


class Assembly:
    """Builds the batches of one experiment. A pure function of the plan and the log, so a replay builds the same."""

    def __init__(self, log: EventLog, spec: ExperimentSpec, *, notes_traces: bool = False) -> None:
        self.traceparents: Newest[UUID, list[str]] = Newest(_TRACED_BATCHES)
        """The headers of the traced experiences of the newest batches, by batch, if `notes_traces`."""
        self._notes_traces = notes_traces
        self._log = log
        self._spec = spec
        self._artifacts = ArtifactStore(Path(spec.job_dir) / "artifacts")
        self._copies = experiment_copies(spec.job_dir, logger())
        self._tokenizers: dict[int, Tokenizer] = {}
        self._datasets: dict[int, Taskset] = {}
        self._reuse = Reuse()

    async def batch(self, plan: BatchPlanned, first_version: int) -> TrainBatch:
        """The plan's items in order. Raises LogLossError if the log lacks a record that the plan names."""
        stage = self._spec.stages[plan.stage]
        items, metrics = await self._experiences(plan, stage) if plan.experiences else ([], {})
        if plan.rows:
            rows, shares = await asyncio.to_thread(self._rows, plan, stage)
            items += rows
            metrics |= shares
        return TrainBatch(
            step=plan.step,
            stage_step=plan.step - first_version,
            samples=[sample for item in items for sample in item],
            items=[len(item) for item in items],
            metrics=metrics,
        )

    async def _experiences(
        self, plan: BatchPlanned, stage: StageSpec
    ) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
        """The samples in the plan's order, and what to report of their groups."""
        own = [Position(Partition(topics.EXPERIENCES, item.partition), item.offset) for item in plan.experiences]
        places = [Position(Partition(topics.TASKS, group.partition), group.offset) for group in plan.groups]
        records = await self._records({*own, *places})
        self._reuse.note(plan, records)
        if self._notes_traces:
            headers = [decode_head(records[place]).traceparent for place in own]
            self.traceparents.put(plan.batch, [header for header in headers if header is not None])
        closed = [_closed(group, records[place]) for group, place in zip(plan.groups, places, strict=True)]
        function = advantage_function(stage.algorithm)
        members = await self._members(closed) if function.member_fields else {}
        experiences = [
            BatchExperience(await self._event(records[place], item.experience), item.group, item.staleness_versions)
            for item, place in zip(plan.experiences, own, strict=True)
        ]
        return group_samples(function, closed, members, experiences, stage=stage, seed=self._spec.seed)

    async def _event(self, record: Record, experience: UUID) -> ExperienceProduced:
        """The experience of a record, with its arrays."""
        event = decode_as(record, ExperienceProduced)
        _expect(event.experience, experience, record)
        # Large arrays lie in files beside the log: reading them would hold the event loop up.
        return await asyncio.to_thread(self._loaded, event) if event.tokens.artifact else event

    async def _members(self, closed: Sequence[GroupClosed]) -> dict[UUID, ExperienceProduced]:
        """The experience of each member of these groups, whether it is in the batch or not."""
        places = {
            Position(Partition(topics.EXPERIENCES, member.partition), member.offset): member.experience
            for group in closed
            for member in group.members
        }
        found: dict[UUID, ExperienceProduced] = {}
        for place, record in (await self._records(places)).items():
            if place not in places:
                continue
            event = await self._event(record, places[place])
            found[event.experience] = event
        return found

    def _loaded(self, event: ExperienceProduced) -> ExperienceProduced:
        """The event with its arrays, which were too large to travel in it."""
        read = self._artifacts.read
        return msgspec.structs.replace(event, **{name: array.loaded(read) for name, array in event.arrays.items()})

    async def _records(self, wanted: Collection[Position]) -> dict[Position, Record]:
        """The records at these places: all that are to be read at once, those that lie close together as one."""
        found = self._reuse.among(wanted)
        async with asyncio.TaskGroup() as reads:
            for partition, offsets in stretches(place for place in wanted if place not in found):
                reads.create_task(self._runs(partition, offsets, found))
        return found

    async def _runs(self, partition: Partition, pending: list[int], found: dict[Position, Record]) -> None:
        while pending:
            first = pending[0]
            last = pending[-1]
            for record in await self._log.read(partition, first, max_records=last - first + 1):
                # Records between the wanted ones come along and are ignored: `found` is only ever asked for wanted
                # places.
                found[Position(partition, record.offset)] = record
            pending = [offset for offset in pending if Position(partition, offset) not in found]
            # A read may give fewer records than asked for; one that gives none of those wanted would be repeated for
            # ever.
            if pending and pending[0] == first:
                raise LogLossError(
                    "a record that a plan names is missing",
                    where=f"{partition}@{first}",
                    fix="run rftd verify on the log",
                )

    def _rows(self, plan: BatchPlanned, stage: StageSpec) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
        """The samples of the plan's rows, and what to report of the rows."""
        dataset = self._dataset(plan.stage, stage)
        # Read again only if size or times have changed: the digest of a large dataset takes minutes.
        digest = dataset.present_digest() if dataset.touched else dataset.digest
        for item in plan.rows:
            if (named := plan.dataset_of(item)) != digest:
                raise DataError(
                    f"dataset of stage {stage.name!r} has digest {digest}, the plan names {named}",
                    where=stage.dataset.path if stage.dataset else None,
                    fix="restore the file that the experiment was accepted with",
                )
        try:
            if dataset.spec.schema == RECORDED:
                return self._recorded(plan, stage, dataset)
            return self._train_rows(plan, stage, dataset)
        except DataError as error:
            # The file is as it was accepted, so the row itself is at fault: no restart mends that, and RowError
            # says so.
            raise RowError(error.what, where=error.where, fix=error.fix) from error

    def _train_rows(
        self, plan: BatchPlanned, stage: StageSpec, dataset: Taskset
    ) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
        tokenizer = self._tokenizer(plan.stage, stage)
        items: list[Sequence[TrainSample]] = []
        counts = Counter[str]()
        for number, item in enumerate(plan.rows):
            sequences = dataset.train_rows(item.row, tokenizer=tokenizer, max_model_len=stage.model.max_model_len)
            counts.update(row_faults(sequences))
            items.append(_row_samples(sequences, number, expert=bool(plan.experiences)))
        return items, {name: count / len(items) for name, count in counts.items()}

    def _recorded(
        self, plan: BatchPlanned, stage: StageSpec, dataset: Taskset
    ) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
        groups = RecordedGroups(dataset, plan.rows, stage=plan.stage, max_model_len=stage.model.max_model_len)
        function = advantage_function(stage.algorithm)
        return group_samples(
            function, groups.closed, groups.members, groups.experiences, stage=stage, seed=self._spec.seed
        )

    def _dataset(self, index: int, stage: StageSpec) -> Taskset:
        if index not in self._datasets:
            assert stage.dataset is not None, stage.name
            self._datasets[index] = Taskset.open(stage.dataset, self._copies)
        return self._datasets[index]

    def _tokenizer(self, index: int, stage: StageSpec) -> Tokenizer:
        if index not in self._tokenizers:
            self._tokenizers[index] = dataset_tokenizer(stage)
        return self._tokenizers[index]


def stretches(places: Iterable[Position]) -> Iterator[tuple[Partition, list[int]]]:
    """The reads that cover the places, each a partition and ascending offsets."""
    partition = None
    offsets = list[int]()
    for place in sorted(places):
        if partition is not None and (place.partition != partition or place.offset - offsets[-1] > READ_ALONG_RECORDS):
            yield partition, offsets
            offsets = []
        partition = place.partition
        offsets.append(place.offset)
    if partition is not None:
        yield partition, offsets


def _closed(group: GroupRef, record: Record) -> GroupClosed:
    closed = decode_as(record, GroupClosed)
    _expect(closed.group, group.group, record)
    return closed


def _row_samples(made: Sequence[TrainRow], number: int, *, expert: bool) -> list[TrainSample]:
    """The sequences of one row of a dataset: two are a pair, chosen and rejected; one may have a label."""
    paired = len(made) == 2
    samples = []
    for place, row in enumerate(made):
        # In a mixed batch a row has neither log-probability nor advantage of its own: zero, as the guide has it.
        zeros = np.zeros(len(row.loss_mask), dtype=np.float32) if expert else None
        samples.append(
            TrainSample(
                tokens=row.tokens,
                prompt_tokens=row.prompt_tokens,
                loss_mask=row.loss_mask,
                logprobs=zeros,
                advantages=zeros,
                expert=expert,
                pair=number if paired else -1,
                chosen=place == 0 if paired else row.desirable,
            )
        )
    return samples


def _expect(found: UUID, wanted: UUID, record: Record) -> None:
    if found != wanted:
        raise LogLossError(
            f"expected {wanted}, found {found}",
            where=f"{record.partition}@{record.offset}",
            fix="run rftd verify: the log was changed behind the plan",
        )
