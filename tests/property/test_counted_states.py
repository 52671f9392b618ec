"""The states and counts of the projector are those of a scan, after every transaction of any history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.log.beset_run import BesetRun
from synthetic.log.busy_run import written
from synthetic.log.recorder import Recorder, interleaved
from synthetic.log.scanned_books import (
    scanned_books,
    scanned_stage_counts,
    scanned_states,
    stored_stage_counts,
    stored_states,
)
from synthetic.log.synthetic_run import spec_of

from rftd.ops.clock import ManualClock
from rftd.ops.errors import OverRolloutError
from rftd.ops.ids import derive
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.books import books_of
from rftd.streams.events import batch, experience, experiment, step, task
from rftd.streams.events.registry import Event
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import Partition
from rftd.streams.log.writers import source_of
from rftd.streams.memory import MemoryLog

GROUPS, ROLLOUTS, WORKERS, LEASES = 4, 3, 2, 4


class RandomHistory:
    """The drafts of two experiments with equal groups, in a random order of writing."""

    def __init__(self, seed: int, events: int) -> None:
        self.recorder = Recorder(seed)
        self.random = np.random.default_rng(seed)
        self.runs = [self.recorder.ids.new() for _ in range(2)]
        self.workers = [self.recorder.ids.new() for _ in range(WORKERS)]
        self.groups = [self.recorder.ids.new() for _ in range(GROUPS)]
        self.leases = [self.recorder.ids.new() for _ in range(LEASES)]
        self.batches: list[UUID] = []
        self.planned = dict.fromkeys(self.runs, 0)
        for run in self.runs:
            self.write(experiment.ExperimentSubmitted(spec=spec_of("random", 3)), run)
            self.write(experiment.StageStarted(stage=0, name="s", first_version=0), run)
        kinds = (self.lease, self.lease, *[self.produce] * 5, self.fail, self.close, *[self.plan] * 3)
        kinds += (self.abandon, self.complete, self.retire)
        for _ in range(events):
            kinds[int(self.random.integers(len(kinds)))](self.any(self.runs))

    @property
    def drafts(self) -> list[Draft]:
        """All records, in another order that leaves each partition's order as it is."""
        return interleaved(self.recorder.drafts, int(self.random.integers(1 << 16)))

    def any(self, ids: list[UUID]) -> UUID:
        """One of the ids."""
        return ids[int(self.random.integers(len(ids)))]

    def number(self, most: int) -> int:
        """A number below `most`."""
        return int(self.random.integers(most))

    def experience(self) -> UUID:
        """The id of a rollout's experience."""
        return derive(self.any(self.groups), "experience", self.number(ROLLOUTS))

    def write(self, event: Event, run: UUID, **places: object) -> None:
        """Writes an event in the name of its owner."""
        self.recorder.write(event, run, **places)  # type: ignore[arg-type]

    def lease(self, run: UUID) -> None:
        """A lease of a group, of any worker, in any slot."""
        leased = task.TaskLeased(
            lease=self.any(self.leases),
            slot=0,
            worker=self.any(self.workers),
            group=self.any(self.groups),
            sequence=0,
            stage=0,
            row=0,
            epoch=0,
            rollouts=(0,),
            repeat_times=1,
            attempt=1,
            deadline_s=60.0,
            min_version=0,
        )
        self.write(leased, run, partition=Partition(topics.TASKS, self.number(2)))

    def produce(self, run: UUID) -> None:
        """An experience under any lease, by any worker, in any partition."""
        group, rollout = self.any(self.groups), self.number(ROLLOUTS)
        id = derive(group, "experience", rollout) if self.number(5) else self.experience()
        produced = experience.ExperienceProduced(
            experience=id,
            group=group,
            rollout=rollout,
            stage=0,
            lease=self.any(self.leases),
            tokens=Array.of([1, 2, 3], "u4"),
            prompt_tokens=2,
            loss_mask=Array.of([1], "u1"),
            logprobs=Array.of([-1.0], "f4"),
            spans=(experience.Span(0, 0, 0, 1),),
            reward=float(self.random.normal()),
        )
        self.answer(produced, run)

    def fail(self, run: UUID) -> None:
        """A failure of a rollout."""
        group = self.any(self.groups)
        failed = experience.RolloutFailed(
            group=group, rollout=self.number(ROLLOUTS), stage=0, lease=self.any(self.leases), code="X", reason="no"
        )
        self.answer(failed, run)

    def answer(self, event: Event, run: UUID) -> None:
        """Writes a record of an explorer; a stranger puts it anywhere."""
        partition = Partition(topics.EXPERIENCES, self.number(2))
        self.write(event, run, partition=partition, source=source_of("explorer", self.any(self.workers)))

    def close(self, run: UUID) -> None:
        """A close of a group with any members."""
        members = [
            task.Member(self.experience(), rollout, 0, 0, 0.0, 0.0, 3, 0, 0)
            for rollout in range(ROLLOUTS)
            if self.number(3)
        ]
        closed = task.GroupClosed(
            group=self.any(self.groups),
            sequence=0,
            stage=0,
            members=tuple(members),
            failed=ROLLOUTS - len(members),
            code=OverRolloutError.code if not self.number(3) else "",
        )
        self.write(closed, run)

    def plan(self, run: UUID) -> None:
        """A plan of any experiences, of the next step or seldom of another, seldom under an id that was used."""
        step_number = self.planned[run] + 1 if self.number(5) else self.number(4)
        id = self.any(self.batches) if self.batches and not self.number(4) else self.recorder.ids.new()
        uses = self.number(3)
        planned = batch.BatchPlanned(
            batch=id,
            step=step_number,
            stage=0,
            experiences=tuple(
                batch.ExperienceItem(self.experience(), 0, 0, 0, 0, self.number(4), 1 + self.number(2))
                for _ in range(1 + self.number(3))
            ),
            groups=(batch.GroupRef(self.groups[0], 0, 0),),
            observed=(),
            decided_at_ns=0,
            max_uses=uses,
        )
        if step_number == self.planned[run] + 1:
            self.planned[run] += 1
        self.batches.append(id)
        self.write(planned, run)

    def abandon(self, run: UUID) -> None:
        """The end of a batch before or after its step."""
        if self.batches:
            abandoned = batch.BatchAbandoned(
                batch=self.any(self.batches), step=1 + self.number(3), code="X", reason="no"
            )
            self.write(abandoned, run)

    def complete(self, run: UUID) -> None:
        """A step of any batch."""
        if self.batches:
            completed = step.StepCompleted(
                batch=self.any(self.batches),
                step=1 + self.number(3),
                stage=0,
                generation=self.number(2),
                checksum="c",
                items=1,
                tokens=1,
                duration_s=1.0,
                metrics={},
            )
            self.write(completed, run)

    def retire(self, run: UUID) -> None:
        """The retirement of any experiences."""
        retired = batch.ExperienceRetired(
            experiences=tuple({self.experience() for _ in range(2)}),
            reason=("stale", "evicted")[self.number(2)],
            uses=self.number(2),
            decided_at_ns=7,
        )
        self.write(retired, run)


async def compare(
    drafts: Sequence[Draft], runs: Sequence[UUID], size: int, url: str = "sqlite:///:memory:"
) -> set[str]:
    """Appends `size` records at a time; after each transaction a scan must find what is stored. The states seen."""
    log, engine = MemoryLog(), open_database(url)
    projector = Projector(log, engine, clock=ManualClock())
    await projector.reset()
    seen = set[str]()
    for first in range(0, len(drafts), size):
        await log.append(drafts[first : first + size])
        await projector.catch_up()
        async with engine.connect() as connection:
            scanned = await scanned_states(connection)
            assert await stored_states(connection) == scanned, first
            assert await stored_stage_counts(connection) == await scanned_stage_counts(connection), first
            for run in runs:
                assert await books_of(connection, run) == await scanned_books(connection, run), first
        seen |= {str(row[1]) for row in scanned}
    await projector.close()
    await engine.dispose()
    return seen


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 16), events=st.integers(1, 60), size=st.sampled_from([1, 3, 20]))
def test_states_of_a_random_history_are_those_of_a_scan(seed: int, events: int, size: int) -> None:
    history = RandomHistory(seed, events)
    asyncio.run(compare(history.drafts, history.runs, size))


def test_random_histories_reach_every_state() -> None:
    seen = set[str]()
    for seed in range(16):
        history = RandomHistory(seed, 60)
        seen |= asyncio.run(compare(history.drafts, history.runs, 10))
    assert seen == {"open", "waiting", "cooling", "planned", "retired", "late"}


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 16), steps=st.integers(0, 3), mix=st.integers(0, 1 << 16))
def test_states_of_busy_and_beset_runs_are_those_of_a_scan(seed: int, steps: int, mix: int) -> None:
    experiment, recorder = written(seed, steps, ended=False)
    asyncio.run(compare(interleaved(recorder.drafts, mix), [experiment], 40))
    beset = BesetRun(Recorder(), steps=steps, seed=seed).write()
    asyncio.run(compare(interleaved(beset.recorder.drafts, mix), [beset.id], 40))


def test_states_on_postgres_are_those_of_a_scan(postgres_url: str) -> None:
    @settings(max_examples=10, deadline=None)
    @given(seed=st.integers(0, 1 << 16), events=st.integers(20, 80), size=st.sampled_from([5, 40]))
    def check(seed: int, events: int, size: int) -> None:
        history = RandomHistory(seed, events)
        asyncio.run(compare(history.drafts, history.runs, size, postgres_url))

    check()
