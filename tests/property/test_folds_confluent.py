"""Rule 6 on the folds: what is decided on does not depend on how the partitions interleave."""

from __future__ import annotations

from uuid import UUID

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_run import REPEAT, SyntheticRun
from tape import Tape, interleaved

from rftd.ops.ids import derive
from rftd.streams.arrays import Array
from rftd.streams.codec import Decoded, decode
from rftd.streams.envelope import Record
from rftd.streams.events import batch, experience, task, worker
from rftd.streams.fencing import FenceView
from rftd.streams.folds.run_state import RunState
from rftd.streams.topics import TASKS, Partition


class BusyRun(SyntheticRun):
    """A run in which leases expire and are given out anew, and which is looked at before its end."""

    def explore(self, *, failed: int = 0) -> UUID:
        """A group whose first lease may have expired in another slot."""
        group = derive(self.id, "group", 1, self.groups)
        for attempt in range(int(self.random.integers(0, 3))):
            self._lease(group, self.groups, attempt + 1, expire=True)
        return super().explore(failed=failed)

    def finish(self) -> None:
        """What is under way when somebody looks: open groups, evaluations, a plan that is not executed."""
        for number in range(3):
            sequence = self.groups + number
            group = derive(self.id, "group", 1, sequence)
            attempts = int(self.random.integers(1, 4))
            for attempt in range(attempts):
                lease = self._lease(group, sequence, attempt + 1, expire=attempt + 1 < attempts)
            for rollout in range(int(self.random.integers(0, REPEAT))):
                self.produce(group, rollout, lease)
        self.plan(stage=1, take=min(len(self.waiting), REPEAT))
        if self.waiting:
            stale = self.waiting.pop().member.experience
            retired = batch.ExperienceRetired(experiences=(stale,), reason="stale", uses=0, decided_at_ns=7)
            self.tape.write(retired, self.id, role="planner")
        self._evaluate()

    def _lease(self, group: UUID, sequence: int, attempt: int, *, expire: bool) -> UUID:
        slot = int(self.random.integers(0, 4))
        lease = derive(group, "lease", attempt)
        leased = task.TaskLeased(
            lease=lease,
            slot=slot,
            worker=self.workers[0],
            group=group,
            sequence=sequence,
            stage=1,
            row=sequence,
            epoch=0,
            rollouts=tuple(range(REPEAT)),
            repeat_times=REPEAT,
            attempt=attempt,
            deadline_s=60.0,
            min_version=self.version,
            pinned=attempt == 1,
        )
        place = Partition(TASKS, slot)
        self.tape.write(leased, self.id, role="dispatcher", partition=place)
        if expire:
            expired = task.TaskExpired(lease=lease, slot=slot, reason=f"attempt {attempt}")
            self.tape.write(expired, self.id, role="dispatcher", partition=place)
        return lease

    def _evaluate(self) -> None:
        """Two ranges: the first is leased twice and scored twice, the second is under way."""
        id = derive(self.id, "eval", "late")
        for slot, start, attempt in ((0, 0, 1), (1, 0, 2), (2, 4, 1)):
            leased = task.EvalLeased(
                lease=derive(id, start, attempt),
                slot=slot,
                worker=self.workers[0],
                eval=id,
                stage=1,
                taskset=0,
                row_start=start,
                row_end=start + 4,
                version=self.version,
                generation=0,
                attempt=attempt,
                deadline_s=60.0,
            )
            self.tape.write(leased, self.id, role="dispatcher", partition=Partition(TASKS, slot))
        for attempt in (1, 2):
            scored = experience.EvalScored(
                eval=id,
                lease=derive(id, 0, attempt),
                stage=1,
                taskset=0,
                row_start=0,
                version=self.version,
                generation=0,
                rewards=Array.of([attempt] * 4, "f4"),
                tokens=Array.of([5] * 4, "u4"),
            )
            self.tape.write(scored, self.id, key=id)


def fold(experiment: UUID, records: list[Record]) -> RunState:
    """As the follower folds."""
    state, fences = RunState(experiment), FenceView()
    for record in records:
        decoded: Decoded = decode(record)
        ours = decoded.head.experiment in (None, experiment)
        if ours and fences.admit(record.partition, decoded.head, decoded.event):
            state.apply(decoded)
    return state


def seen(state: RunState) -> dict[str, object]:
    """Everything that decisions rest on, without the order of what has none."""
    groups, ledger, weights = state.groups, state.ledger, state.weights
    return {
        "spine": dict(vars(state.spine)),
        "groups": {id: {name: getattr(group, name) for name in group.__slots__} for id, group in groups.open.items()},
        "leases": groups.leases,
        "positions": groups.next_sequence,
        "failures": (groups._short, groups._short_stage, groups.last_error),
        "waiting": ledger.waiting,
        "books": ledger.books.as_counts(len(ledger.waiting)) | ledger.books.retired,
        "failed": ledger.books.failed_rollouts,
        "planned": ledger.planned_in_stage,
        "counted": (ledger.group_sizes, ledger.oldest_versions),
        "ahead": ledger._ahead,
        "weights": (weights.published, weights.retired, weights.activated, weights.newest(state.spine)),
        "evals": {
            id: {name: getattr(evaluation, name) for name in evaluation.__slots__}
            for id, evaluation in state.evals.open.items()
        },
        "workers": (state.roster.live, state.roster.gone),
        "checkpoints": state.checkpoints,
    }


def written(seed: int, steps: int, *, ended: bool) -> tuple[UUID, Tape]:
    tape = Tape(seed)
    SyntheticRun(tape, name="other", steps=1, seed=seed + 1).write()
    run = (SyntheticRun if ended else BusyRun)(tape, name="one", steps=steps, seed=seed).write()
    lost = worker.WorkerLost(worker=run.workers[1], role="explorer", slot=1, reason="killed")
    tape.write(lost, run.id, key=run.workers[1])
    return run.id, tape


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 16), steps=st.integers(0, 3), mix=st.integers(0, 1 << 16), ended=st.booleans())
def test_state_does_not_depend_on_how_the_partitions_interleave(seed: int, steps: int, mix: int, ended: bool) -> None:
    experiment, tape = written(seed, steps, ended=ended)
    record_of = {draft.id: record for draft, record in zip(tape.drafts, tape.records, strict=True)}
    straight = seen(fold(experiment, tape.records))
    mixed = seen(fold(experiment, [record_of[draft.id] for draft in interleaved(tape.drafts, mix)]))
    assert {name: mixed[name] for name in straight if mixed[name] != straight[name]} == {}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 16), first=st.permutations(["rftd.experiments", "rftd.tasks", "rftd.experiences"]))
def test_a_stream_may_be_read_to_its_end_before_another_is_begun(seed: int, first: list[str]) -> None:
    """Plans before the groups that they name, retirements before groups, groups before their members."""
    experiment, tape = written(seed, 2, ended=False)
    ranks = {stream: rank for rank, stream in enumerate(first)}
    ordered = sorted(tape.records, key=lambda record: ranks.get(record.partition.stream, -1))
    assert seen(fold(experiment, ordered)) == seen(fold(experiment, tape.records))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 16), mix=st.integers(0, 1 << 16))
def test_what_is_counted_is_what_waits(seed: int, mix: int) -> None:
    experiment, tape = written(seed, 2, ended=False)
    record_of = {draft.id: record for draft, record in zip(tape.drafts, tape.records, strict=True)}
    ledger = fold(experiment, [record_of[draft.id] for draft in interleaved(tape.drafts, mix)]).ledger
    entries = list(ledger.waiting.values())
    assert ledger.books.as_counts(len(entries))["balance"] == 0
    for counts, values in (
        (ledger.group_sizes, [entry.group_size for entry in entries]),
        (ledger.oldest_versions, [entry.member.oldest_version for entry in entries]),
    ):
        assert dict(zip(*np.unique(values, return_counts=True), strict=True)) == dict(counts)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 16), steps=st.integers(0, 3), chance=st.integers(0, 1 << 16), ended=st.booleans())
def test_a_record_that_comes_again_later_changes_nothing(seed: int, steps: int, chance: int, ended: bool) -> None:
    """As Kafka may deliver it: the same event once more, at some later place of its partition."""
    experiment, tape = written(seed, steps, ended=ended)
    random = np.random.default_rng(chance)
    repeated = list(tape.records)
    for _ in range(int(random.integers(1, 40))):
        chosen = int(random.integers(len(repeated)))
        again = repeated[chosen]
        place = int(random.integers(chosen + 1, len(repeated) + 1))
        repeated.insert(place, Record(again.partition, 1_000_000 + place, again.chain, again.head, again.value))
    straight, seen_again = seen(fold(experiment, tape.records)), seen(fold(experiment, repeated))
    assert {name: (seen_again[name], straight[name]) for name in straight if seen_again[name] != straight[name]} == {}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 16))
def test_everything_twice_is_the_same_as_once(seed: int) -> None:
    experiment, tape = written(seed, 3, ended=False)
    twice = [
        *tape.records,
        *(Record(r.partition, r.offset + 1_000_000, r.chain, r.head, r.value) for r in tape.records),
    ]
    straight, seen_again = seen(fold(experiment, tape.records)), seen(fold(experiment, twice))
    assert {name: (seen_again[name], straight[name]) for name in straight if seen_again[name] != straight[name]} == {}
