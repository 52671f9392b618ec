"""Rule 6 on the folds: what is decided on does not depend on how the partitions interleave."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.log.busy_run import fold, seen, written
from synthetic.log.recorder import interleaved

from rftd.streams.log.envelope import Record


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    steps=st.integers(0, 3),
    mix=st.integers(0, 1 << 16),
    ended=st.booleans(),
    forked=st.booleans(),
)
def test_state_does_not_depend_on_how_the_partitions_interleave(
    seed: int, steps: int, mix: int, ended: bool, forked: bool
) -> None:
    experiment, recorder = written(seed, steps, ended=ended, forked=forked)
    record_of = {draft.id: record for draft, record in zip(recorder.drafts, recorder.records, strict=True)}
    straight = seen(fold(experiment, recorder.records))
    mixed = seen(fold(experiment, [record_of[draft.id] for draft in interleaved(recorder.drafts, mix)]))
    assert {name: mixed[name] for name in straight if mixed[name] != straight[name]} == {}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 16), first=st.permutations(["rftd.experiments", "rftd.tasks", "rftd.experiences"]))
def test_a_stream_may_be_read_to_its_end_before_another_is_begun(seed: int, first: list[str]) -> None:
    """Plans before the groups that they name, retirements before groups, groups before their members."""
    experiment, recorder = written(seed, 2, ended=False)
    ranks = {stream: rank for rank, stream in enumerate(first)}
    ordered = sorted(recorder.records, key=lambda record: ranks.get(record.partition.stream, -1))
    assert seen(fold(experiment, ordered)) == seen(fold(experiment, recorder.records))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 16), mix=st.integers(0, 1 << 16))
def test_what_is_counted_is_what_waits(seed: int, mix: int) -> None:
    experiment, recorder = written(seed, 2, ended=False)
    record_of = {draft.id: record for draft, record in zip(recorder.drafts, recorder.records, strict=True)}
    replay_buffer = fold(experiment, [record_of[draft.id] for draft in interleaved(recorder.drafts, mix)]).replay_buffer
    sizes = [entry.group_size for entry in replay_buffer.waiting.values()]
    assert replay_buffer.counts()["balance"] == 0
    assert dict(zip(*np.unique(sizes, return_counts=True), strict=True)) == dict(replay_buffer.group_sizes)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 16), mix=st.integers(0, 1 << 16), upto=st.floats(0.2, 1.0), twice=st.booleans())
def test_what_is_kept_of_groups_is_what_a_look_at_all_of_them_finds(
    seed: int, mix: int, upto: float, twice: bool
) -> None:
    experiment, recorder = written(seed, 2, ended=False)
    record_of = {draft.id: record for draft, record in zip(recorder.drafts, recorder.records, strict=True)}
    records = [record_of[draft.id] for draft in interleaved(recorder.drafts, mix)]
    records = records[: int(len(records) * upto)]
    state = fold(experiment, records + records if twice else records)
    groups = state.groups
    begun = [group for group in groups.open.values() if group.sequence >= 0]
    leases = [lease for group in begun for lease in group.leases.values()]
    load = Counter[UUID]()
    for lease in leases:
        load[lease.worker] += len(groups.open[lease.group].left_of(lease))
    assert {lease.id: lease for lease in leases} == groups.leases
    assert groups.to_close == len(begun)
    assert groups.inflight_rollouts == sum(group.repeat_times - len(group.failed) for group in begun)
    assert groups.load == {worker: rollouts for worker, rollouts in load.items() if rollouts}
    assert groups.alone == {lease.id: lease.worker for lease in leases if lease.alone}
    assert groups.loose == {group.id for group in begun if group.loose}
    weights = state.weights
    assert weights.standing == sorted(key for key in weights.published if key not in weights.retired)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 16), mix=st.integers(0, 1 << 16))
def test_an_index_that_follows_the_changes_holds_what_the_ledger_holds(seed: int, mix: int) -> None:
    experiment, recorder = written(seed, 2, ended=False)
    record_of = {draft.id: record for draft, record in zip(recorder.drafts, recorder.records, strict=True)}
    state = fold(experiment, [record_of[draft.id] for draft in interleaved(recorder.drafts, mix)])
    assert state.touched
    index = {id: entry for id, entry in state.touched.items() if entry is not None}
    assert index == state.replay_buffer.waiting | state.replay_buffer.cooling


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 16),
    steps=st.integers(0, 3),
    chance=st.integers(0, 1 << 16),
    ended=st.booleans(),
    forked=st.booleans(),
)
def test_a_record_that_comes_again_later_changes_nothing(
    seed: int, steps: int, chance: int, ended: bool, forked: bool
) -> None:
    """The same event comes once more, as Kafka may deliver it, at some later place of its partition."""
    experiment, recorder = written(seed, steps, ended=ended, forked=forked)
    random = np.random.default_rng(chance)
    repeated = list(recorder.records)
    for _ in range(int(random.integers(1, 40))):
        chosen = int(random.integers(len(repeated)))
        again = repeated[chosen]
        place = int(random.integers(chosen + 1, len(repeated) + 1))
        repeated.insert(place, Record(again.partition, 1_000_000 + place, again.chain, again.head, again.value))
    straight, seen_again = seen(fold(experiment, recorder.records)), seen(fold(experiment, repeated))
    assert {name: (seen_again[name], straight[name]) for name in straight if seen_again[name] != straight[name]} == {}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 16), forked=st.booleans())
def test_everything_twice_is_the_same_as_once(seed: int, forked: bool) -> None:
    experiment, recorder = written(seed, 3, ended=False, forked=forked)
    twice = [
        *recorder.records,
        *(Record(r.partition, r.offset + 1_000_000, r.chain, r.head, r.value) for r in recorder.records),
    ]
    straight, seen_again = seen(fold(experiment, recorder.records)), seen(fold(experiment, twice))
    assert {name: (seen_again[name], straight[name]) for name in straight if seen_again[name] != straight[name]} == {}
