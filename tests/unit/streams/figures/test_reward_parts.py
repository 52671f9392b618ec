"""The means of the named parts of rewards, whatever the rewards of a third party name and give."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rftd.streams.figures.reward_parts import LIMIT, mean_name, part_means, part_of, part_sums

ROWS = st.lists(st.dictionaries(st.text(max_size=80), st.floats(allow_nan=False, allow_infinity=False)), max_size=40)


@given(ROWS)
def test_every_figure_is_finite_and_they_are_few(rows: list[dict[str, float]]) -> None:
    sums = part_sums(rows)
    assert len(sums) <= LIMIT
    assert all(math.isfinite(mean) for mean in part_means(sums, len(rows)).values())
    assert [part_of(mean_name(name)) for name in sums if name] == [name for name in sums if name]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(-9, 9)), max_size=40), st.integers(0, 40))
def test_sums_of_ranges_of_rows_are_those_of_all_rows(rows: list[dict[str, int]], at: int) -> None:
    halves = part_sums([part_sums(rows[:at]), part_sums(rows[at:])])
    assert halves == part_sums(rows)


def test_a_row_without_a_part_counts_zero() -> None:
    sums = part_sums([{"accuracy": 1.0, "format": -0.1}, {}, {"accuracy": 1.0}, {"accuracy": 0.0}])
    assert part_means(sums, 4) == {"reward/accuracy/mean": 0.5, "reward/format/mean": -0.025}
    assert part_means({}, 0) == {}


def test_other_figures_are_no_parts() -> None:
    assert [part_of(name) for name in ("reward//mean", "reward/mean", "critic/rewards/mean")] == [None, None, None]
