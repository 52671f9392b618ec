"""Selectors are pure: what they draw follows from what they are shown, however often they were made anew before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rftd.ops import limits
from rftd.streams.folds.selection import Rewards
from rftd.workers.control.selectors.difficulty import DifficultyBased, PassRates
from rftd.workers.control.selectors.easy_to_hard import EasyToHard
from rftd.workers.control.selectors.selector import ClosedRewards, DrawView, TaskSelector

ROWS = 12
WEAK = np.linspace(0.1, 0.6, ROWS)
ANCHORS = np.column_stack([WEAK, np.clip(WEAK + np.linspace(0.4, 0.0, ROWS), 0, 1)])

closes = st.lists(st.tuples(st.integers(0, ROWS - 1), st.floats(-0.1, 1.1)), max_size=60)


def kept(rewards: Rewards) -> ClosedRewards:
    closed = np.frombuffer(rewards.kept, np.dtype([("row", "<i8"), ("value", "<f8")]))
    return ClosedRewards(rewards.count, closed["row"], closed["value"])


def view_of(first: int, rewards: Rewards, columns: NDArray[np.float64] = ANCHORS, **changes: Any) -> DrawView:
    fields = {"first": first, "size": 3, "rows": len(columns), "seed": 7, "columns": columns, "rewards": kept(rewards)}
    return DrawView(**fields | changes)


def drawn_along(selector: Callable[[], TaskSelector], history: list[tuple[int, float]]) -> list[list[int]]:
    """The draws while groups close, by the selector that the function gives for each."""
    rewards = Rewards()
    draws: list[list[int]] = []
    for number, (row, value) in enumerate(history):
        rewards.add(row, value)
        if number % 2:
            draws.append(list(selector().draw(view_of(3 * len(draws), rewards))))
    return draws


@given(
    history=closes,
    tau=st.sampled_from([0.0, 0.1, 1.0]),
    do_sample=st.booleans(),
    lamb=st.sampled_from([0.0, 0.2, 1.0]),
    kept_rewards=st.sampled_from([8, 16, 1000]),
)
def test_a_selector_that_is_made_anew_draws_as_the_one_before_would_have(
    history: list[tuple[int, float]], tau: float, do_sample: bool, lamb: float, kept_rewards: int
) -> None:
    def make() -> DifficultyBased:
        return DifficultyBased(m=4, lamb=lamb, tau=tau, do_sample=do_sample, target_reward=0.5)

    with pytest.MonkeyPatch.context() as patch:
        # So few that an estimate begins anew within the history, and that a fold forgets.
        patch.setattr(limits, "KEPT_REWARDS", kept_rewards)
        lasting = make()
        assert drawn_along(lambda: lasting, history) == drawn_along(make, history)


@given(history=closes)
def test_rewards_that_are_forgotten_are_the_oldest_and_enough_are_kept(history: list[tuple[int, float]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "KEPT_REWARDS", 8)
        rewards = Rewards()
        for row, value in history:
            rewards.add(row, value)
        rows, values = kept(rewards).between(rewards.first, rewards.count)
        assert list(zip(rows, values, strict=True)) == history[rewards.first :]
        assert len(rows) >= min(8, len(history))
        assert len(rows) < 16


def published(history: list[list[tuple[int, float]]], *, m: int, lamb: float, rho: float) -> tuple[Any, Any]:
    """Alphas and betas by the published formulas, row by row."""
    alphas, betas = [1.0] * ROWS, [1.0] * ROWS
    capability: float | None = None
    for step in history:
        observed = {row: min(max(value, 0.0), 1.0) for row, value in step}
        mean = sum(min(max(value, 0.0), 1.0) for _, value in step) / len(step)
        weak = sum(ANCHORS[row, 0] for row, _ in step) / len(step)
        strong = sum(ANCHORS[row, 1] for row, _ in step) / len(step)
        now = (mean - weak) / (strong - weak + 1e-6)
        capability = now if capability is None else 0.9 * capability + 0.1 * now
        for row in range(ROWS):
            guess = min(max(ANCHORS[row, 0] + (ANCHORS[row, 1] - ANCHORS[row, 0]) * capability, 0.0), 1.0)
            guess = observed.get(row, guess)
            passed = m * observed[row] if row in observed else 0.0
            failed = m * (1 - observed[row]) if row in observed else 0.0
            alphas[row] = (1 - lamb) * alphas[row] + lamb + (1 - rho) * passed + rho * guess * m
            betas[row] = (1 - lamb) * betas[row] + lamb + (1 - rho) * failed + rho * (1 - guess) * m
    return alphas, betas


@given(
    history=st.lists(st.lists(st.tuples(st.integers(0, ROWS - 1), st.floats(0, 1)), min_size=1, max_size=5), max_size=8)
)
def test_pass_rates_are_those_of_the_published_formulas(history: list[list[tuple[int, float]]]) -> None:
    # A row that is explored twice in a step counts once: unlike there, here the last one stands for both.
    history = [list(dict(step).items()) for step in history]
    rates = PassRates(ANCHORS, tries=16, forgets=0.2, trusts=0.3)
    for step in history:
        rates.observe(np.array([row for row, _ in step]), np.array([value for _, value in step]))
    alphas, betas = published(history, m=16, lamb=0.2, rho=0.3)
    assert rates.alphas == pytest.approx(np.array(alphas))
    assert rates.betas == pytest.approx(np.array(betas))


def test_models_that_are_equal_say_nothing_of_rows_that_were_not_tried() -> None:
    rates = PassRates(np.column_stack([WEAK, WEAK - 1e-6]), tries=4, forgets=0.2, trusts=0.2)
    rates.observe(np.array([0, 1]), np.array([0.5, 1.0]))
    assert np.isfinite(rates.means()).all()


def test_the_nearest_rows_are_taken_without_temperature() -> None:
    rewards = Rewards()
    for row, value in ((0, 0.0), (1, 0.5), (2, 1.0), (3, 0.0), (4, 0.6), (5, 1.0)):
        rewards.add(row, value)
    columns = np.zeros((6, 2))
    selector = DifficultyBased(tau=0.0, target_reward=0.5, rho=0.0)
    assert set(selector.draw(view_of(0, rewards, columns, size=2))) == {1, 4}


def test_rows_are_drawn_by_the_softmax_of_their_distance() -> None:
    rewards = Rewards()
    for row, value in ((0, 0.0), (1, 0.5), (2, 1.0)):
        rewards.add(row, value)
    columns = np.zeros((3, 2))
    selector = DifficultyBased(tau=0.2, target_reward=1.0, rho=0.0)
    draws = 4000
    firsts = Counter(selector.draw(view_of(place, rewards, columns))[0] for place in range(draws))
    alphas = 0.8 + 0.2 + 16 * np.array([0.0, 0.5, 1.0])
    betas = 0.8 + 0.2 + 16 * np.array([1.0, 0.5, 0.0])
    weights = np.exp(-np.abs(1 - alphas / (alphas + betas)) / 0.2)
    expected = weights / weights.sum()
    assert [firsts[row] / draws for row in range(3)] == pytest.approx(expected, abs=0.03)


@given(
    table=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20), draws=st.integers(1, 12)
)
def test_easy_rows_come_first_and_of_equal_ones_the_later(table: list[tuple[int, int]], draws: int) -> None:
    columns = np.array(table, float)
    selector = EasyToHard()
    size = min(3, len(table))
    found: list[int] = []
    for number in range(draws):
        found += selector.draw(view_of(number * size, Rewards(), columns, size=size))
    order = [entry[-1] for entry in sorted([*pair, row] for row, pair in enumerate(table))[::-1]]
    assert found == [order[place % len(order)] for place in range(draws * size)]
