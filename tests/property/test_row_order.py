"""The order of rows is a pure function of the place, and every epoch holds every row once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rftd.ops.errors import ConfigError
from rftd.streams.row_order import SELECTORS, RowOrder, locate, locate_among, permutation


@given(
    rows=st.integers(1, 60), seed=st.integers(-5, 2**64), epoch=st.integers(0, 50), selector=st.sampled_from(SELECTORS)
)
def test_each_epoch_is_a_permutation(rows: int, seed: int, epoch: int, selector: str) -> None:
    places = range(epoch * rows, (epoch + 1) * rows)
    found = [locate(place, rows=rows, selector=selector, seed=seed) for place in places]
    assert sorted(row for row, _ in found) == list(range(rows))
    assert {number for _, number in found} == {epoch}


@given(rows=st.integers(1, 60), seed=st.integers(0, 9), places=st.lists(st.integers(0, 10_000), max_size=40))
def test_a_place_has_one_row_whatever_was_asked_before(rows: int, seed: int, places: list[int]) -> None:
    forward = {place: locate(place, rows=rows, selector="shuffle", seed=seed) for place in places}
    permutation.cache_clear()
    for place in reversed(places):
        assert locate(place, rows=rows, selector="shuffle", seed=seed) == forward[place]


def test_shuffle_differs_between_epochs_and_between_seeds() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [locate(epoch * 50 + place, rows=50, selector="shuffle", seed=seed)[0] for place in range(50)]

    assert order(1, 0) != order(1, 1)
    assert order(1, 1) == order(2, 0)
    assert order(1, 0) != list(range(50))


def test_an_unknown_selector_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'random'; known: sequential, shuffle"):
        locate(0, rows=1, selector="random", seed=0)


@st.composite
def _orders(draw: st.DrawFn) -> tuple[RowOrder, ...]:
    order = st.builds(RowOrder, st.integers(1, 20), st.sampled_from(SELECTORS), st.integers(0, 9))
    return tuple(draw(st.lists(order, min_size=1, max_size=4)))


@given(orders=_orders(), epoch=st.integers(0, 50))
def test_each_epoch_holds_every_row_of_several_datasets_once_and_each_in_its_own_order(
    orders: tuple[RowOrder, ...], epoch: int
) -> None:
    total = sum(each.rows for each in orders)
    places = range(epoch * total, (epoch + 1) * total)
    found = [locate_among(place, orders) for place in places]
    assert sorted(row for row, _ in found) == list(range(total))
    assert {number for _, number in found} == {epoch}
    first = 0
    for rows, selector, seed in orders:
        own = [row - first for row, _ in found if first <= row < first + rows]
        alone = range(epoch * rows, (epoch + 1) * rows)
        assert own == [locate(place, rows=rows, selector=selector, seed=seed)[0] for place in alone]
        first += rows


def test_the_turns_of_several_datasets_are_drawn_as_trinity_rft_draws_them() -> None:
    orders = (RowOrder(3, "sequential", 0), RowOrder(5, "sequential", 0))
    for epoch in (0, 1, 7):
        turns = [0] * 3 + [1] * 5
        np.random.default_rng(epoch).shuffle(turns)
        found = [locate_among(epoch * 8 + place, orders)[0] for place in range(8)]
        assert [int(row >= 3) for row in found] == turns
