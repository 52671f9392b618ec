"""Rewards of arbitrary text: always finite and in range; numbers agree however they are written."""

from __future__ import annotations

from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.answer import accuracy, agree
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.rewards.reward import RewardResult

PIECES = ["<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "####", "\\frac{", "}{", "/", ",", ".", "-"]
MATHEMATICS = [
    "\\sqrt{",
    "\\sqrt[3]{",
    "^{",
    "^9",
    "_",
    "}",
    "(",
    ")",
    "\\{",
    "\\}",
    "\\pm ",
    "\\cup ",
    "|",
    "=",
    "<",
    "\\sin ",
]
TEXT = st.one_of(st.text(max_size=60), st.lists(st.sampled_from([*PIECES, "0", "12", " ", "x", "%"])).map("".join))
FORMULA = st.lists(st.sampled_from([*PIECES, *MATHEMATICS, "0", "12", "3e4", " ", "x", "y", "+", "*"])).map("".join)
TASK = Task(taskset="t", row=0, epoch=0, prompt="?", messages=(Message("user", "?"),), truth="", workflow="w")


@given(response=TEXT | FORMULA, truth=TEXT | FORMULA)
def test_no_text_breaks_a_reward(response: str, truth: str) -> None:
    # The others ask: a process of their own, a model, a judge, a sandbox.
    for name in set(REWARDS.names()) - {
        "math_verify_reward",
        "reward_model",
        "llm_judge_reward",
        "rubric_judge_reward",
        "code_reward",
    }:
        # Its truth is a task, and what is none is an error of the dataset.
        rows = {"countdown_reward": '{"target": 7, "numbers": [3, 4]}', "tool_call_reward": '{"name": "add"}'}
        asked = rows.get(name, truth)
        result = REWARDS.open(name).score(response, asked, TASK)
        assert isinstance(result, RewardResult)
        assert -0.1 <= result.value <= 1.1
        assert result.value == sum(result.parts.values())


@given(value=st.integers(-(10**12), 10**12), other=st.integers(-(10**12), 10**12))
def test_whole_numbers_agree_however_they_are_written(value: int, other: int) -> None:
    for written in (f"{value}", f"{value:,}", f"${value:,}", f"{value}.0", f"{value} apples", f"{2 * value}/2"):
        assert agree(written, str(value))
        assert accuracy(f"<answer>{written}</answer>", f"so\n#### {value:,}") == 1.0
        assert agree(written, str(other)) is (value == other)


@given(top=st.integers(-999, 999), bottom=st.integers(1, 999))
def test_fractions_agree_by_value(top: int, bottom: int) -> None:
    lowest = Fraction(top, bottom)
    assert agree(f"\\frac{{{top}}}{{{bottom}}}", f"{lowest.numerator}/{lowest.denominator}")
    assert agree(f"{top}/{bottom}", str(top / bottom)) is (Fraction(str(top / bottom)) == lowest)


@given(whole=st.integers(0, 999), top=st.integers(1, 999), bottom=st.integers(1, 999), sign=st.sampled_from(["", "-"]))
def test_mixed_numbers_are_the_sum_of_their_parts(whole: int, top: int, bottom: int, sign: str) -> None:
    value = Fraction(whole * bottom + top, bottom) * (-1 if sign else 1)
    for written in (f"{sign}{whole}\\frac{{{top}}}{{{bottom}}}", f"{sign}{whole} {top}/{bottom}"):
        assert agree(written, str(value))
        assert agree(str(value), written)
        assert not agree(written, str(value + 1))
        assert agree(written, f"{whole}{top}/{bottom}") is (value == Fraction(f"{whole}{top}") / bottom)


@given(terms=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=5), seed=st.randoms())
def test_sums_agree_in_any_order_and_with_no_other_sum(terms: list[tuple[int, int]], seed: Random) -> None:
    def written(parts: list[tuple[int, int]]) -> str:
        return " + ".join(f"{factor}x^{{{power}}}" for factor, power in parts)

    shuffled = list(terms)
    seed.shuffle(shuffled)
    assert agree(written(shuffled), written(terms))
    assert not agree(written([*shuffled, (1, 2)]), written(terms))
