"""A plan, with the records that it names, as a batch of arrays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
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
from rftd.streams.events.step import (
    ANSWERS_CUT,
    ANSWERS_EMPTY,
    EQUAL_GROUPS,
    PROMPTS_CUT,
)
from rftd.streams.events.task import GroupClosed
from rftd.streams.figures.reward_parts import part_means, part_sums
from rftd.streams.log import topics
from rftd.streams.log.codec import decode_as, decode_head
from rftd.streams.log.envelope import Position, Record
from rftd.streams.log.log import EventLog
from rftd.streams.log.newest import Newest
from rftd.streams.log.topics import Partition
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.workers.datasets.stage_tokenizer import dataset_tokenizer
from rftd.workers.datasets.table_copies import experiment_copies
from rftd.workers.datasets.taskset import Taskset
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.datasets.train_row import TrainRow, row_faults
from rftd.workers.learning.algorithms.advantages.advantage import Masking, Substituting
from rftd.workers.learning.algorithms.advantages.group_metrics import group_metrics
from rftd.workers.learning.algorithms.advantages.registry import advantage_function
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.training.closed_groups import closed_group, of_rollouts
from rftd.workers.training.run_samples import Constants, run_samples


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


class ProcessedGap:
    """The gap between processed and raw log-probabilities of a batch's trained tokens, where experiences have both.

    With top-k, top-p and min-p alone it is -log of the probability that they keep: a ratio of the whole distribution to
    the processed one would be off by that share at every token, with no policy changed (TRL issue 6789). So ratios are
    to the raw ones, and this figure says what is left out.
    """

    def __init__(self) -> None:
        self._sum = 0.0
        self._tokens = 0

    def add(self, event: ExperienceProduced) -> None:
        """Counts an experience that is trained; one without processed log-probabilities changes nothing."""
        if event.processed_logprobs is None:
            return
        of = event.loss_mask.view() != 0
        self._sum += float(np.sum((event.processed_logprobs.view() - event.logprobs.view())[of], dtype=np.float64))
        self._tokens += int(of.sum())

    @property
    def metrics(self) -> dict[str, float]:
        """The mean over tokens in nats; nothing if no token has both."""
        return {"rollout/processed_minus_raw/mean": self._sum / self._tokens} if self._tokens else {}


class RolloutCounts:
    """The rollouts of a batch: shares of which nothing, or little, can be learnt, and the parts of their rewards."""

    def __init__(self) -> None:
        self._rollouts = 0
        self._found = dict.fromkeys((PROMPTS_CUT, ANSWERS_CUT, ANSWERS_EMPTY), 0)
        self._parts: list[dict[str, float]] = []

    def add(self, event: ExperienceProduced) -> None:
        """Counts a rollout."""
        self._rollouts += 1
        self._parts.append(event.metrics)
        if event.finish == "prompt_truncated":
            self._found[PROMPTS_CUT] += 1
        elif event.finish == "length":
            self._found[ANSWERS_CUT] += 1
        # An answer that ends by itself has the token that ends it.
        elif len(event.loss_mask) <= 1:
            self._found[ANSWERS_EMPTY] += 1

    def metrics(self, closed: Sequence[GroupClosed]) -> dict[str, float]:
        """The shares, with that of groups whose rewards are all equal, and the parts' means; nothing of no rollouts."""
        if not self._rollouts:
            return {}
        shares = {name: count / self._rollouts for name, count in self._found.items()}
        equal = equal_groups([[member.reward for member in group.members] for group in closed])
        return {EQUAL_GROUPS: equal} | shares | part_means(part_sums(self._parts), self._rollouts)


def equal_groups(rewards: Sequence[Sequence[float]]) -> float:
    """The share of groups in which every reward is the same; of single rollouts 1 if all have the same, else 0."""
    several = [len(set(each)) == 1 for each in rewards if len(each) > 1]
    if several:
        return sum(several) / len(several)
    return float(len({reward for each in rewards for reward in each}) == 1)


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
        greedy = stage.algorithm.greedy_rollouts
        views = [
            closed_group(event, function.member_fields, members=members, greedy=greedy, seed=self._spec.seed)
            for event in closed
        ]
        advantages = [of_rollouts(view, each) for view, each in zip(views, function.advantages(views), strict=True)]
        usual = stage.taskset.sampling.temperature if stage.taskset else 1.0
        constants = Constants()
        # Asked once: a check of a runtime protocol costs more than all else that is done with an experience.
        masking = function if isinstance(function, Masking) else None
        samples: list[Sequence[TrainSample]] = []
        gap = ProcessedGap()
        counts = RolloutCounts()
        for item, place in zip(plan.experiences, own, strict=True):
            event = decode_as(records[place], ExperienceProduced)
            _expect(event.experience, item.experience, records[place])
            # Large arrays lie in files beside the log: reading them would hold the event loop up.
            if event.tokens.artifact:
                event = await asyncio.to_thread(self._loaded, event)
            counts.add(event)
            values = advantages[item.group][event.rollout]
            # A rollout that is not trained stays in the batch with an all-zero mask: the plan names it, and the step
            # accounts for it.
            trained = event.rollout >= greedy and (masking is None or masking.trains(event.finish))
            if trained:
                gap.add(event)
            samples.append(run_samples(item, event, values, usual, constants, trained=trained))
        substitutes = function.substitutes(views) if isinstance(function, Substituting) else {}
        if substitutes:
            samples = _substituted(samples, substitutes)
        return samples, group_metrics(function, views) | gap.metrics | counts.metrics(closed)

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
            event = decode_as(record, ExperienceProduced)
            _expect(event.experience, places[place], record)
            found[event.experience] = await asyncio.to_thread(self._loaded, event) if event.tokens.artifact else event
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
        tokenizer = self._tokenizer(plan.stage, stage)
        items: list[Sequence[TrainSample]] = []
        counts = Counter[str]()
        # Read again only if size or times have changed: the digest of a large dataset takes minutes.
        found = dataset.present_digest() if dataset.touched else dataset.digest
        for number, item in enumerate(plan.rows):
            if (named := plan.dataset_of(item)) != found:
                raise DataError(
                    f"dataset of stage {stage.name!r} has digest {found}, the plan names {named}",
                    where=stage.dataset.path if stage.dataset else None,
                    fix="restore the file that the experiment was accepted with",
                )
            try:
                made = dataset.train_rows(item.row, tokenizer=tokenizer, max_model_len=stage.model.max_model_len)
            except DataError as error:
                # The file is as it was accepted, so the row itself is at fault: no restart mends that, and RowError
                # says so.
                raise RowError(error.what, where=error.where, fix=error.fix) from error
            counts.update(row_faults(made))
            items.append(_row_samples(made, number, expert=bool(plan.experiences)))
        return items, {name: count / len(items) for name, count in counts.items()}

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


def _substituted(runs: Sequence[Sequence[TrainSample]], substitutes: Mapping[int, int]) -> list[Sequence[TrainSample]]:
    """The samples of each run; those of one group in the place of those of another, in turn."""
    by_group: dict[int, list[Sequence[TrainSample]]] = {}
    for run in runs:
        by_group.setdefault(run[0].group, []).append(run)
    # In turn: the substitute's runs may be fewer than those that they stand in for.
    turns = {group: cycle(by_group[other]) for group, other in substitutes.items() if other in by_group}
    return [next(turns[run[0].group]) if run[0].group in turns else run for run in runs]


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
