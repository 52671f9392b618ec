"""The order of rows is a pure function of the place, and every epoch holds every row once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic.worlds.desk import stage_of

from rftd.ops.errors import ConfigError
from rftd.streams.spec import stage_tasks
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import locate, located, turn_at, turn_of

BY_EPOCH = ("sequential", "shuffle")


def _taskset(rows: int, selector: str, seed: int) -> TasksetSpec:
    return TasksetSpec(name="tasks", path="none", rows=rows, selector=selector, seed=seed)


def _stage(*tasksets: TasksetSpec, batch_size: int = 2) -> StageSpec:
    return stage_of(taskset=tasksets[0], more_tasksets=tasksets[1:], batch_size=batch_size)


def _located(stage: StageSpec, sequences: range) -> list[tuple[int, int]]:
    return [located(stage, turn_of(stage, sequence)) for sequence in sequences]


@given(
    rows=st.integers(1, 60), seed=st.integers(-5, 2**64), epoch=st.integers(0, 50), selector=st.sampled_from(BY_EPOCH)
)
def test_each_epoch_is_a_permutation(rows: int, seed: int, epoch: int, selector: str) -> None:
    places = range(epoch * rows, (epoch + 1) * rows)
    found = [locate(place, rows=rows, selector=selector, seed=seed) for place in places]
    assert sorted(row for row, _ in found) == list(range(rows))
    assert {number for _, number in found} == {epoch}


@given(rows=st.integers(1, 60), seed=st.integers(0, 9), places=st.lists(st.integers(0, 10_000), max_size=40))
def test_a_place_has_one_row_whatever_was_asked_before(rows: int, seed: int, places: list[int]) -> None:
    forward = {place: locate(place, rows=rows, selector="shuffle", seed=seed) for place in places}
    stage_tasks._permutations.cache_clear()
    for place in reversed(places):
        assert locate(place, rows=rows, selector="shuffle", seed=seed) == forward[place]


@given(rows=st.integers(1, 300), seed=st.integers(-5, 2**64), epoch=st.integers(0, 50))
def test_each_epoch_of_many_rows_is_a_permutation(rows: int, seed: int, epoch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_tasks, "_DRAWN_ROWS", 0)
        places = range(epoch * rows, (epoch + 1) * rows)
        found = [locate(place, rows=rows, selector="shuffle", seed=seed) for place in places]
    assert sorted(row for row, _ in found) == list(range(rows))
    assert {number for _, number in found} == {epoch}


def test_the_order_of_ten_million_rows_is_nowhere_in_memory() -> None:
    rows = 10**7
    stage_tasks._permutations.cache_clear()
    orders = [
        [locate(epoch * rows + place, rows=rows, selector="shuffle", seed=1)[0] for place in range(2000)]
        for epoch in (0, 1)
    ]
    assert stage_tasks._permutations.cache_info().currsize == 0
    for order in orders:
        assert len(set(order)) == 2000
        # Of a uniform draw each tenth of the rows gets 200 of them, give or take 14.
        assert all(120 < count < 280 for count in np.bincount([row * 10 // rows for row in order], minlength=10))
        assert abs(np.corrcoef(order, range(2000))[0, 1]) < 0.1
    assert orders[0] != orders[1]


def test_shuffle_differs_between_epochs_and_between_seeds() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [locate(epoch * 50 + place, rows=50, selector="shuffle", seed=seed)[0] for place in range(50)]

    assert order(1, 0) != order(1, 1)
    assert order(1, 1) == order(2, 0)
    assert order(1, 0) != list(range(50))


def test_an_unknown_selector_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'easy'; known: sequential, shuffle, random"):
        locate(0, rows=1, selector="easy", seed=0)


@given(rows=st.integers(1, 60), draw=st.integers(1, 80), seed=st.integers(-5, 2**64), number=st.integers(0, 50))
def test_random_draws_different_rows_at_a_time(rows: int, draw: int, seed: int, number: int) -> None:
    size = min(rows, draw)
    places = range(number * size, (number + 1) * size)
    found = [locate(place, rows=rows, selector="random", seed=seed, draw=draw) for place in places]
    assert len({row for row, _ in found}) == size
    assert {epoch for _, epoch in found} == {number}


def test_random_draws_as_trinity_rft_does() -> None:
    for number in range(20):
        first = number * 8
        expected = np.random.default_rng(42 + first).choice(100, 8, replace=False)
        found = [locate(first + place, rows=100, selector="random", seed=42, draw=8)[0] for place in range(8)]
        assert found == list(expected)


def test_random_takes_rows_again_before_all_were_taken() -> None:
    rows = [locate(place, rows=30, selector="random", seed=1, draw=5)[0] for place in range(30)]
    assert len(set(rows)) < 30


@given(epoch=st.integers(0, 20), seed=st.integers(0, 9))
def test_among_several_datasets_random_draws_on_over_its_own_turns(epoch: int, seed: int) -> None:
    # Of seven groups in an explore step the second dataset has four.
    stage = _stage(_taskset(4, "sequential", 0), _taskset(6, "random", seed), batch_size=7)
    found = _located(stage, range(epoch * 10, epoch * 10 + 10))
    drawn = [(row - 4, number) for row, number in found if row >= 4]
    alone = range(epoch * 6, epoch * 6 + 6)
    assert drawn == [locate(place, rows=6, selector="random", seed=seed, draw=4) for place in alone]
    assert [row for row, _ in found if row < 4] == [0, 1, 2, 3]


@st.composite
def _tasksets(draw: st.DrawFn) -> tuple[TasksetSpec, ...]:
    taskset = st.builds(_taskset, st.integers(1, 20), st.sampled_from(BY_EPOCH), st.integers(0, 9))
    return tuple(draw(st.lists(taskset, min_size=1, max_size=4)))


@given(tasksets=_tasksets(), epoch=st.integers(0, 50))
def test_each_epoch_holds_every_row_of_several_datasets_once_in_its_own_order(
    tasksets: tuple[TasksetSpec, ...], epoch: int
) -> None:
    total = sum(taskset.rows for taskset in tasksets)
    found = _located(_stage(*tasksets), range(epoch * total, (epoch + 1) * total))
    assert sorted(row for row, _ in found) == list(range(total))
    assert {number for _, number in found} == {epoch}
    first = 0
    for taskset in tasksets:
        rows = taskset.rows
        own = [row - first for row, _ in found if first <= row < first + rows]
        alone = range(epoch * rows, (epoch + 1) * rows)
        expected = [locate(place, rows=rows, selector=taskset.selector, seed=taskset.seed) for place in alone]
        assert own == [row for row, _ in expected]
        first += rows


def test_the_turns_of_several_datasets_are_drawn_as_trinity_rft_draws_them() -> None:
    stage = _stage(_taskset(3, "sequential", 0), _taskset(5, "sequential", 0))
    for epoch in (0, 1, 7):
        turns = [0] * 3 + [1] * 5
        np.random.default_rng(epoch).shuffle(turns)
        found = _located(stage, range(epoch * 8, epoch * 8 + 8))
        assert [int(row >= 3) for row, _ in found] == turns


def test_the_turns_of_many_rows_take_five_bytes_each() -> None:
    sizes = (70_000, 130_000)
    assert sum(kept.nbytes for kept in stage_tasks._turns(sizes, 3)) == 5 * sum(sizes)
    turns = np.repeat(np.arange(2), sizes)
    np.random.default_rng(3).shuffle(turns)
    found = [turn_at(3 * sum(sizes) + place, sizes) for place in range(0, sum(sizes), 777)]
    assert [turn.dataset for turn in found] == turns[::777].tolist()
    before = [int((turns[:place] == turns[place]).sum()) for place in range(0, sum(sizes), 777)]
    within = [turn.place - 3 * sizes[turn.dataset] for turn in found]
    assert within == before
