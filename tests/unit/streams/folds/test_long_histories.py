"""A fold is as large as what is under way, however long the history; what it forgot is read from the log again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.log.busy_run import fold, written
from synthetic.log.long_history import BATCH, EXPERIMENT, LongHistory
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.ids import derive
from rftd.streams.folds import ranges
from rftd.streams.folds.ranges import ClosedGroups, Ranges
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.snapshot import Snapshot, pack
from rftd.streams.log.group_id import group_id, place_of_group
from rftd.streams.log.shared_history import plan_offsets, shared_history
from rftd.streams.memory import MemoryLog


def size_of(state: RunState) -> int:
    return len(pack(Snapshot(experiment=EXPERIMENT, marks=(), fences=(), parts=state.parts())))


def test_a_fold_does_not_grow_with_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "REMEMBERED", 16)
    history, state = LongHistory(), RunState(EXPERIMENT)
    sizes = []
    for _ in range(4):
        for decoded in history.steps(64):
            state.apply(decoded)
        sizes.append(size_of(state))
    closed = history.experiences - len(state.replay_buffer.waiting)
    assert closed == 4 * 64 * BATCH
    assert state.replay_buffer.counts()["balance"] == 0
    # One evaluation of a hundred steps is kept by its id; nothing else may remain of a step or a group.
    assert max(sizes) - min(sizes[1:]) < 0.02 * (sizes[1] + 64 * BATCH), sizes
    assert (history.version, 0) in state.spine.executed
    assert (1, 0) in state.weights.retired
    assert len(state.weights.published) == len(state.weights.standing) <= 5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=80))
def test_intervals_are_a_set(changes: list[tuple[int, bool]]) -> None:
    ranges, plain = Ranges(), set[int]()
    for number, taken in changes:
        (ranges.add if taken else ranges.discard)(number)
        (plain.add if taken else plain.discard)(number)
    assert {number for number in range(42) if number in ranges} == plain
    assert ranges.last == max(plain, default=None)
    for number in range(42):
        assert ranges.below(number) == max((each for each in plain if each < number), default=None)
    assert len(ranges.starts) == sum(number - 1 not in plain for number in plain), "no two intervals touch"


def test_a_group_says_its_place_to_its_experiment_alone() -> None:
    other = derive(EXPERIMENT, "other")
    for stage, sequence in ((0, 0), (3, 10**7), (4095, (1 << 48) - 1)):
        id = group_id(EXPERIMENT, stage, sequence)
        assert place_of_group(EXPERIMENT, id) == (stage, sequence)
        assert place_of_group(other, id) is None
        assert place_of_group(None, id) is None
    for id in (group_id(EXPERIMENT, 4096, 0), derive(EXPERIMENT, "group", 0, 0), derive(EXPERIMENT, "retry")):
        assert place_of_group(EXPERIMENT, id) is None


def test_closed_groups_are_known_by_place_or_by_id() -> None:
    closed = ClosedGroups()
    ids = [group_id(EXPERIMENT, stage, number) for stage in range(2) for number in range(50)]
    ids += [derive(id, "retry") for id in ids[:5]]
    for chosen in np.random.default_rng(0).permutation(len(ids)).tolist():
        assert not closed.holds(EXPERIMENT, ids[chosen])
        assert closed.first(EXPERIMENT, ids[chosen])
        assert not closed.first(EXPERIMENT, ids[chosen])
    assert all(closed.holds(EXPERIMENT, id) for id in ids)
    assert len(closed.others) == 5
    assert all(len(each.starts) == 1 for each in closed.by_stage.values())


@pytest.mark.anyio
async def test_plans_of_long_ago_are_found_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        experiment, recorder = written(seed, 3, ended=False)
        log = MemoryLog()
        await log.append(recorder.drafts)
        known = fold(experiment, recorder.records).spine.plan_offsets
        assert known
        assert await plan_offsets(log, experiment, first=1) == known
        assert await plan_offsets(log, experiment, first=3) == {step: at for step, at in known.items() if step >= 3}


@pytest.mark.anyio
async def test_a_fork_may_begin_at_a_step_that_the_fold_forgot(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    run = SyntheticRun(recorder).write()
    log = MemoryLog()
    await log.append(recorder.drafts)
    remembered = [(await shared_history(log, run.id, at)).forked for at in range(1, run.version + 1)]
    monkeypatch.setattr(ranges, "REMEMBERED", 1)
    assert [(await shared_history(log, run.id, at)).forked for at in range(1, run.version + 1)] == remembered
