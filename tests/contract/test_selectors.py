"""What every selector promises, ours and a third party's: different rows, the same for the same view."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from synthetic.docs.package import install_hardest_first

from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.control.selectors.registry import SELECTORS, make_selector
from rftd.workers.control.selectors.selector import ClosedRewards, DrawView, TaskSelector

NAMES = (*SELECTORS.ours(), "hardest_first")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[], TaskSelector]:
    """Makes the selector of the test's name: ours, or the one of docs/extending.md, from its entry point."""
    install_hardest_first(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    spec = TasksetSpec(name="t", path="p", selector=request.param, feature_keys=("weak", "strong"))
    return lambda: make_selector(spec)


def views_of(chance: random.Random) -> Iterator[DrawView]:
    """The views of one run: groups close between its draws."""
    rows = chance.randint(1, 40)
    size = chance.randint(1, min(rows, 8))
    columns = np.array([[chance.random(), chance.random()] for _ in range(rows)])
    seed = chance.randint(0, 2**40)
    closed: list[tuple[int, float]] = []
    for number in range(10):
        closed += [(chance.randrange(rows), chance.uniform(-1, 2)) for _ in range(chance.randint(0, 2 * size))]
        told = np.array([row for row, _ in closed], np.int64)
        rewards = ClosedRewards(len(closed), told, np.array([value for _, value in closed]))
        yield DrawView(first=number * size, size=size, rows=rows, seed=seed, columns=columns, rewards=rewards)


@pytest.mark.parametrize("make", NAMES, indirect=True)
def test_a_draw_is_of_different_rows_and_follows_from_its_view(make: Callable[[], TaskSelector]) -> None:
    chance = random.Random(7)
    for _ in range(20):
        lasting = make()
        for view in views_of(chance):
            rows = list(lasting.draw(view))
            assert len(rows) == len(set(rows)) == view.size
            assert all(0 <= row < view.rows for row in rows)
            assert rows == list(make().draw(view)), "one that is made anew draws the same"


@pytest.mark.parametrize("make", NAMES, indirect=True)
def test_one_that_promises_every_row_once_an_epoch_keeps_it(make: Callable[[], TaskSelector]) -> None:
    selector = make()
    if not selector.once_an_epoch:
        pytest.skip("it promises nothing")
    columns = np.random.default_rng(1).random((10, 2))
    nothing = ClosedRewards(0, np.empty(0, np.int64), np.empty(0))
    drawn: list[int] = []
    for number in range(15):
        view = DrawView(first=4 * number, size=4, rows=10, seed=3, columns=columns, rewards=nothing)
        drawn += selector.draw(view)
    for epoch in range(6):
        assert sorted(drawn[10 * epoch : 10 * epoch + 10]) == list(range(10))
