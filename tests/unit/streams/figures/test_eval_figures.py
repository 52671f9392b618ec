"""The figures of an evaluation follow from its scores, whatever ranges they came in."""

from __future__ import annotations

import statistics
from typing import Any
from uuid import UUID

import pytest
from synthetic.worlds.desk import scores_of

from rftd.streams.events.experience import CategoryScore, EvalScored
from rftd.streams.figures.eval_figures import figures_of
from rftd.streams.log.arrays import Array

EVAL = UUID(int=7)


def scored(rewards: list[float], right: list[int] | None = None, **changes: Any) -> EvalScored:
    flags = None if right is None else Array.of(right, "u1")
    tokens = Array.of(list(range(1, len(rewards) + 1)), "u4")
    return scores_of(rewards, **{"right": flags, "tokens": tokens} | changes)


def test_accuracy_stands_beside_the_score_with_its_uncertainty() -> None:
    figures = figures_of([scored([1.1, -0.1], [1, 0]), scored([0.9, 0.9], [1, 1], row_start=2)], EVAL)
    assert figures["accuracy/mean"] == 0.75
    assert (figures["accuracy/low"], figures["accuracy/high"]) == pytest.approx((0.300642, 0.954413), abs=1e-6)
    assert figures["score/low"] < 0.7 < figures["score/high"]
    # lm-eval's: the sample's deviation over the root of its size.
    assert figures["accuracy/stderr"] == pytest.approx((0.75 * 0.25 / 3) ** 0.5)
    assert figures["score/stderr"] == pytest.approx(statistics.stdev([1.1, -0.1, 0.9, 0.9]) / 2, abs=1e-6)
    assert figures["response_length/right/mean"] == pytest.approx((1 + 1 + 2) / 3)
    assert figures["response_length/wrong/mean"] == 2.0


def test_nothing_is_said_of_accuracy_where_some_scores_do_not_say_what_is_right() -> None:
    figures = figures_of([scored([3.0], None), scored([1.0], [1], row_start=1)], EVAL)
    assert set(figures) == {"score/low", "score/high", "score/stderr"}


def test_equal_scores_are_certain_as_far_as_anybody_can_tell() -> None:
    figures = figures_of([scored([0.5, 0.5], None)], EVAL)
    assert figures == {"score/low": 0.5, "score/high": 0.5, "score/stderr": 0.0}
    assert "score/stderr" not in figures_of([scored([0.5], None)], EVAL), "one row does not tell"


def test_several_answers_to_a_row_have_figures_of_their_number() -> None:
    votes = Array.of([0, 1, 0, 0, 0, 0, 0, 0], "u4")
    answered = scored([1, 0, 1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0, 0, 0], tries=4, votes=votes)
    figures = figures_of([answered], EVAL)
    assert answered.rows == 2
    assert figures["tries"] == 4.0
    assert [figures[f"pass@{k}"] for k in (1, 2, 4)] == pytest.approx([0.375, 0.5, 0.5])
    assert figures["avg@4"] == figures["accuracy/mean"] == 0.375
    assert (figures["best@4"], figures["worst@4"]) == (0.5, 0.0)
    assert figures["majority@4"] == 0.5
    # Rows are resampled, not answers: of two rows a mean of either is possible.
    assert (figures["accuracy/low"], figures["accuracy/high"]) == (0.0, 0.75)


def test_categories_are_added_up_over_ranges() -> None:
    first = scored([1.0, 0.0], [1, 0], categories={"algebra": CategoryScore(2, 1.0, 1)})
    second = scored([1.0], [1], categories={"algebra": CategoryScore(1, 1.0, 1), "sets": CategoryScore(1, 0.5, 0)})
    figures = figures_of([first, second], EVAL)
    assert figures["category/algebra/accuracy"] == figures["category/algebra/score"] == pytest.approx(2 / 3)
    assert figures["category/algebra/answers"] == 3.0
    assert figures["category/sets/score"] == 0.5


@pytest.mark.parametrize(
    "changes", [{"tries": 0}, {"tries": 3}, {"right": Array.of([1], "u1")}, {"votes": Array.of([1], "u4")}]
)
def test_scores_that_do_not_fit_together_are_no_event(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rewards"):
        scores_of([1.0, 0.0], **changes)
