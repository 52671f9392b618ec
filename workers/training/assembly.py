"""Assembly of a planned batch: reads the records named in a plan, and builds arrays for the engine."""

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
from rftd.workers.learning.algorithms.advantages.by_taskset import stage_advantages
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.training.closed_groups import after_pipeline
from rftd.workers.training.group_samples import BatchExperience, group_samples
from rftd.workers.training.recorded import RecordedGroups

AUXILIARY: Final = "auxiliary"
"""Prefix of the figures of recorded rollouts beside a batch's own."""


class Reuse:
    """A cache of immutable log records, limited in bytes; the oldest records are dropped first."""

    def __init__(self, most_size_bytes: int = limits.REUSED_RECORDS_SIZE_BYTES) -> None:
        """Caches at most `most_size_bytes` of records."""
        self._max_size_bytes = most_size_bytes
        self._cached: dict[Position, Record] = {}
        """Cached records by position, the oldest first."""
        self.size_bytes = 0
        """Total size of the cached records."""

    def among(self, positions: Collection[Position]) -> dict[Position, Record]:
        """Returns the cached records at these positions; uncached ones are left out."""
        if not self._cached:
            return {}
        return {position: self._cached[position] for position in positions if position in self._cached}

    def note(self, plan: BatchPlanned, records: Mapping[Position, Record]) -> None:
        """Caches the records of a plan that may be planned again, and drops the plan's other records."""
        # Without reuse no record is read twice, and caching any would cost memory for nothing.
        if plan.max_uses == 1:
            return
        groups = [Position(Partition(topics.TASKS, group.partition), group.offset) for group in plan.groups]
        for planned in plan.experiences:
            position = Position(Partition(topics.EXPERIENCES, planned.partition), planned.offset)
            self._drop_record(position)
            # 0 means without limit. Dropping first moves the record to the end of the queue.
            if not plan.max_uses or planned.use < plan.max_uses:
                self._add_to_cache(position, records[position])
                self._add_to_cache(groups[planned.group], records[groups[planned.group]])
        # A dictionary keeps the order of insertion, so its first key is the oldest record.
        while self.size_bytes > self._max_size_bytes:
            self._drop_record(next(iter(self._cached)))

    def _add_to_cache(self, position: Position, record: Record) -> None:
        """Adds a record, unless it is cached already."""
        if position not in self._cached:
            self._cached[position] = record
            self.size_bytes += len(record.head) + len(record.value)

    def _drop_record(self, position: Position) -> None:
        """Removes a record, if it is cached."""
        record = self._cached.pop(position, None)
        if record is not None:
            self.size_bytes -= len(record.head) + len(record.value)


READ_ALONG_RECORDS: Final = 16
"""Maximum number of unneeded records between two needed ones for reading all of them at once."""


_TRACED_BATCHES: Final = 8
"""Number of batches with stored trace headers: at most two are in use, others belong to steps never executed."""


class Assembly:
    """Builds the batches of one experiment, as a pure function of plan and log, so that a replay builds equal ones."""

    def __init__(self, log: EventLog, spec: ExperimentSpec, *, notes_traces: bool = False) -> None:
        """Reads the records of `log`; with `notes_traces`, experiences' trace headers are stored in `traceparents`."""
        self.traceparents: Newest[UUID, list[str]] = Newest(_TRACED_BATCHES)
        """Trace headers of the traced experiences of the newest batches, by batch; empty without `notes_traces`."""
        self._notes_traces = notes_traces
        self._log = log
        self._spec = spec
        self._artifacts = ArtifactStore(Path(spec.job_dir) / "artifacts")
        self._copies = experiment_copies(spec.job_dir, logger())
        self._tokenizers: dict[int, Tokenizer] = {}
        """Tokenizers of datasets by stage, opened on first use."""
        self._datasets: dict[int, Taskset] = {}
        """Datasets by stage, opened on first use."""
        self._reuse = Reuse()

    async def batch(self, plan: BatchPlanned, first_version: int) -> TrainBatch:
        """Returns the plan's experiences and rows in order. Raises LogLossError if the log lacks a planned record."""
        stage = self._spec.stages[plan.stage]
        sequences, metrics = await self._experiences(plan, stage) if plan.experiences else ([], {})
        if plan.rows:
            rows, shares = await asyncio.to_thread(self._samples_of_rows, plan, stage)
            sequences += rows
            metrics |= shares
        return TrainBatch(
            step=plan.step,
            stage_step=plan.step - first_version,
            samples=[sample for samples in sequences for sample in samples],
            items=[len(samples) for samples in sequences],
            metrics=metrics,
        )

    async def _experiences(
        self, plan: BatchPlanned, stage: StageSpec
    ) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
        """Returns the samples in the plan's order, and the metrics of their groups."""
        positions = [
            Position(Partition(topics.EXPERIENCES, planned.partition), planned.offset) for planned in plan.experiences
        ]
        group_positions = [Position(Partition(topics.TASKS, group.partition), group.offset) for group in plan.groups]
        records = await self._records_at({*positions, *group_positions})
        self._reuse.note(plan, records)
        if self._notes_traces:
            headers = [decode_head(records[position]).traceparent for position in positions]
            self.traceparents.put(plan.batch, [header for header in headers if header is not None])
        closed = [
            _closed_group(group, records[position])
            for group, position in zip(plan.groups, group_positions, strict=True)
        ]
        function = stage_advantages(stage)
        members = await self._members_of(closed) if function.member_fields else {}
        experiences = [
            BatchExperience(
                _after_pipeline(
                    await self._experience_of(records[position], planned.experience),
                    closed[planned.group],
                    planned.member,
                ),
                planned.group,
                planned.staleness_versions,
            )
            for planned, position in zip(plan.experiences, positions, strict=True)
        ]
        return group_samples(function, closed, members, experiences, stage=stage, seed=self._spec.seed)

    async def _experience_of(self, record: Record, experience: UUID) -> ExperienceProduced:
        """Returns the experience of a record, with all arrays."""
        event = decode_as(record, ExperienceProduced)
        _require_id(event.experience, experience, record)
        # Large arrays lie in files beside the log: reading them would block the event loop.
        return await asyncio.to_thread(self._loaded, event) if event.tokens.artifact else event

    async def _members_of(self, closed: Sequence[GroupClosed]) -> dict[UUID, ExperienceProduced]:
        """Returns the experience of each member of these groups, in the batch or not, by id."""
        ids = {
            Position(Partition(topics.EXPERIENCES, member.partition), member.offset): member.experience
            for group in closed
            for member in group.members
        }
        verdicts = {
            member.experience: verdict
            for group in closed
            for member, verdict in zip(group.members, group.verdicts, strict=False)
        }
        members: dict[UUID, ExperienceProduced] = {}
        for position, record in (await self._records_at(ids)).items():
            if position not in ids:
                continue
            event = await self._experience_of(record, ids[position])
            verdict = verdicts.get(event.experience)
            members[event.experience] = event if verdict is None else after_pipeline(event, verdict)
        return members

    def _loaded(self, event: ExperienceProduced) -> ExperienceProduced:
        """Returns the event with large arrays read from their artifacts."""
        read = self._artifacts.read
        return msgspec.structs.replace(event, **{name: array.loaded(read) for name, array in event.arrays.items()})

    async def _records_at(self, positions: Collection[Position]) -> dict[Position, Record]:
        """Returns the records at these positions: read concurrently, neighbours in one read."""
        records = self._reuse.among(positions)
        async with asyncio.TaskGroup() as reads:
            for partition, offsets in stretches(position for position in positions if position not in records):
                reads.create_task(self._read_run(partition, offsets, records))
        return records

    async def _read_run(self, partition: Partition, pending: list[int], records: dict[Position, Record]) -> None:
        """Reads the pending offsets of one partition into `records`. Raises LogLossError for a missing record."""
        while pending:
            first = pending[0]
            last = pending[-1]
            for record in await self._log.read(partition, first, max_records=last - first + 1):
                # Records between the requested ones come along and are ignored: `records` is only queried for requested
                # positions.
                records[Position(partition, record.offset)] = record
            pending = [offset for offset in pending if Position(partition, offset) not in records]
            # A read may return fewer records than requested; a read without any requested record would repeat for ever.
            if pending and pending[0] == first:
                raise LogLossError(
                    "a record that a plan names is missing",
                    where=f"{partition}@{first}",
                    fix="run rftd verify on the log",
                )

    def _samples_of_rows(
        self, plan: BatchPlanned, stage: StageSpec
    ) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
        """Returns the samples of the plan's rows, and metrics of the rows."""
        dataset = self._dataset(plan.stage, stage)
        # Read again only if size or times have changed: the digest of a large dataset takes minutes.
        digest = dataset.present_digest() if dataset.touched else dataset.digest
        for planned in plan.rows:
            if (named_digest := plan.dataset_of(planned)) != digest:
                raise DataError(
                    f"dataset of stage {stage.name!r} has digest {digest}, the plan names {named_digest}",
                    where=stage.dataset.path if stage.dataset else None,
                    fix="restore the file that the experiment was accepted with",
                )
        try:
            if dataset.spec.schema == RECORDED:
                return self._recorded_rollouts(plan, stage, dataset)
            return self._samples_of_text(plan, stage, dataset)
        except DataError as error:
            # The file is as accepted, so the row itself is at fault: a restart cannot mend it, hence RowError.
            raise RowError(error.what, where=error.where, fix=error.fix) from error

    def _samples_of_text(
        self, plan: BatchPlanned, stage: StageSpec, dataset: Taskset
    ) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
        """Returns the samples of rows with text, and the fractions of rows with a fault."""
        tokenizer = self._tokenizer(plan.stage, stage)
        samples: list[Sequence[TrainSample]] = []
        counts = Counter[str]()
        for number, planned in enumerate(plan.rows):
            sequences = dataset.train_rows(planned.row, tokenizer=tokenizer, max_model_len=stage.model.max_model_len)
            counts.update(row_faults(sequences))
            samples.append(_row_samples(sequences, number, expert=bool(plan.experiences)))
        return samples, {name: count / len(samples) for name, count in counts.items()}

    def _recorded_rollouts(
        self, plan: BatchPlanned, stage: StageSpec, dataset: Taskset
    ) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
        """Returns the samples of recorded rollouts, with the metrics of their groups."""
        groups = RecordedGroups(dataset, plan.rows, stage=plan.stage, max_model_len=stage.model.max_model_len)
        function = stage_advantages(stage)
        samples, metrics = group_samples(
            function, groups.closed, groups.members, groups.experiences, stage=stage, seed=self._spec.seed
        )
        return beside_experiences(samples, metrics, plan) if plan.experiences else (samples, metrics)

    def _dataset(self, index: int, stage: StageSpec) -> Taskset:
        """Returns the dataset of a stage, opened on first use."""
        if index not in self._datasets:
            assert stage.dataset is not None, stage.name
            self._datasets[index] = Taskset.open(stage.dataset, self._copies)
        return self._datasets[index]

    def _tokenizer(self, index: int, stage: StageSpec) -> Tokenizer:
        """Returns the tokenizer of a stage's dataset, opened on first use."""
        if index not in self._tokenizers:
            self._tokenizers[index] = dataset_tokenizer(stage)
        return self._tokenizers[index]


def beside_experiences(
    samples: Sequence[Sequence[TrainSample]], metrics: Mapping[str, float], plan: BatchPlanned
) -> tuple[list[Sequence[TrainSample]], dict[str, float]]:
    """Returns recorded rollouts for a batch with experiences: groups numbered after the plan's, metrics by own names.

    Tokens count as drawn by the newest weights: the versions of an older run's weights mean nothing in this run, and a
    correction by age changes no token of age 0.
    """
    numbered: list[Sequence[TrainSample]] = [
        [
            msgspec.structs.replace(
                sample,
                group=sample.group + len(plan.groups),
                versions=np.full(len(sample.loss_mask), plan.step, dtype=np.int64),
            )
            for sample in run
        ]
        for run in samples
    ]
    return numbered, {f"{AUXILIARY}/{name}": figure for name, figure in metrics.items()}


def stretches(positions: Iterable[Position]) -> Iterator[tuple[Partition, list[int]]]:
    """Groups positions into reads: each a partition and its ascending offsets, with gaps of at most
    `READ_ALONG_RECORDS`.
    """
    partition = None
    offsets = list[int]()
    for position in sorted(positions):
        if partition is not None and (
            position.partition != partition or position.offset - offsets[-1] > READ_ALONG_RECORDS
        ):
            yield partition, offsets
            offsets = []
        partition = position.partition
        offsets.append(position.offset)
    if partition is not None:
        yield partition, offsets


def _after_pipeline(event: ExperienceProduced, closed: GroupClosed, member: int) -> ExperienceProduced:
    """Returns a planned experience as its group's close has it: changed by the experience pipeline, if there is one."""
    return after_pipeline(event, closed.verdicts[member]) if closed.verdicts else event


def _closed_group(group: GroupRef, record: Record) -> GroupClosed:
    """Returns the `group.closed` in a record. Raises LogLossError for another group's."""
    closed = decode_as(record, GroupClosed)
    _require_id(closed.group, group.group, record)
    return closed


def _row_samples(train_rows: Sequence[TrainRow], number: int, *, expert: bool) -> list[TrainSample]:
    """Returns the sequences of one row of a dataset: two are a pair, chosen and rejected; one may have a label."""
    paired = len(train_rows) == 2
    samples = []
    for index, row in enumerate(train_rows):
        # In a mixed batch a row has neither log-probability nor advantage: zero, as in the guide.
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
                chosen=index == 0 if paired else row.desirable,
            )
        )
    return samples


def _require_id(experience: UUID, expected: UUID, record: Record) -> None:
    """Raises LogLossError if a record has an id other than the planned one."""
    if experience != expected:
        raise LogLossError(
            f"expected {expected}, found {experience}",
            where=f"{record.partition}@{record.offset}",
            fix="run rftd verify: the log was changed behind the plan",
        )
