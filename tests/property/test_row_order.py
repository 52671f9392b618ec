"""The order of rows is a pure function of the place, and every epoch holds every row once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rftd.ops.errors import ConfigError
from rftd.streams.row_order import SELECTORS, locate, permutation


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
