"""Rewards: goldens, and every reference solution of GSM8K."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from rftd.ops import limits
from rftd.ops.errors import ConfigError, DataError
from rftd.streams.events.experience import Span
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.generation.response import Response
from rftd.workers.workflows.rewards.answer import accuracy, agree, last_boxed, truth_of
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.rewards.reward import RewardResult, RolloutView
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.rewards.words import closing, only_quantity

GSM8K = Path(__file__).parents[6] / "shared" / "data" / "gsm8k"
TASK = Task(
    taskset="t", row=0, epoch=0, prompt="?", messages=(Message("user", "?"),), truth="", workflow="math_workflow"
)
ASKED = '{"target": 24, "numbers": [3, 8, 1]}'
TAGGED = "<think> 16 - 7 = 9, times 2 </think>\n<answer> 18 </answer>"


def score(name: str, response: str, truth: str, **arguments: object) -> RewardResult:
    result = REWARDS.open(name, arguments).score(response, truth, TASK)
    assert isinstance(result, RewardResult)
    return result


def gsm8k(split: str) -> Iterator[str]:
    path = GSM8K / f"{split}.jsonl"
    if not path.is_file():
        pytest.skip("the GSM8K files are not beside this checkout")
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_reference_solution_of_gsm8k_scores_one(split: str) -> None:
    count = 0
    for solution in gsm8k(split):
        truth = solution.split("####")[1].strip()
        assert truth_of(solution) == truth
        value = float(truth.replace(",", ""))
        for response in (
            solution,
            f"<think> {solution} </think> <answer> ${truth} </answer>",
            f"<think>{value + 1}</think><answer>{value}</answer>",
            f"so the result is \\boxed{{{truth}}}, not {value + 1}",
            f"{value + 1} is wrong, the answer is {truth} dollars.",
        ):
            assert accuracy(response, solution) == 1.0, (response, truth)
        assert accuracy(f"<answer>{value + 1}</answer> {truth}", solution) == 0.0
        assert accuracy("I do not know.", solution) == 0.0
        count += 1
    assert count == {"train": 7473, "test": 1319}[split]


@pytest.mark.parametrize(
    ("response", "truth", "accuracy", "form"),
    [
        (TAGGED, "#### 18", 1.0, 0.1),
        (TAGGED, "#### 19", 0.0, 0.1),
        ("She makes $18 a day", "#### 18", 1.0, -0.1),
        ("18", "18", 1.0, -0.1),
        ("", "18", 0.0, -0.1),
        ("<answer>18</answer>", "18", 1.0, -0.1),
        ("Sure! " + TAGGED + "\n", "18", 1.0, 0.1),
        (TAGGED + " Done.", "18", 1.0, -0.1),
        ("<think>18</think>", "18", 0.0, -0.1),
        ("<think>18</think> It is 20.", "20", 1.0, -0.1),
        ("<think>a</think><answer>1</answer> <answer>2</answer>", "2", 1.0, 0.1),
        ("<think>a</think> so <answer>\\boxed{2}</answer>", "2", 1.0, -0.1),
        ("<answer>4</answer><think>a</think>", "4", 1.0, -0.1),
        ("<think>a</think><answer>no idea</answer>", "4", 0.0, 0.1),
        ("<think>a</think><answer>Paris</answer>", " paris. ", 1.0, 0.1),
    ],
)
def test_math_reward(response: str, truth: str, accuracy: float, form: float) -> None:
    result = score("math_reward", response, truth)
    assert result.parts == {"accuracy": accuracy, "format_score": form}
    assert result.value == pytest.approx(accuracy + form)


@pytest.mark.parametrize(
    ("response", "truth", "arguments", "value"),
    [
        ("\\boxed{18}", "#### 18", {}, 1.0),
        ("so 18", "#### 18", {}, 0.0),
        ("\\boxed{17} no, \\boxed{18}", "18", {}, 1.0),
        ("\\boxed{18} no, \\boxed{17}", "18", {}, 0.0),
        ("\\boxed{\\frac{1}{2}}", "0.5", {}, 1.0),
        ("\\boxed{x^{2}}", "\\boxed{x^{2}}", {}, 1.0),
        ("\\boxed{\\text{18 dollars}}", "x", {}, 0.0),
        ("<think>a</think> \\boxed{18}", "18", {"with_think": True}, 1.0),
        ("\\boxed{18}", "18", {"with_think": True}, 0.9),
        ("\\boxed{1}", "18", {"with_think": True, "format_score_coef": 0.5}, -0.5),
    ],
)
def test_math_boxed_reward(response: str, truth: str, arguments: dict[str, object], value: float) -> None:
    assert score("math_boxed_reward", response, truth, **arguments).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("<think>\na\n</think>\n<answer>\nb\n</answer>", 0.1),
        ("<think>\na\n</think>\n<answer>\nb</answer>", -0.1),
        ("<think>a</think> <answer>b</answer>", -0.1),
        (" <think>\na\n</think>\n<answer>\nb\n</answer>", -0.1),
        ("<think>\n</answer>", -0.1),
    ],
)
def test_format_reward_wants_tags_on_lines_of_their_own(response: str, value: float) -> None:
    assert score("format_reward", response, "").value == value


@pytest.mark.parametrize(("response", "value"), [("42", 1.0), (" 42\n", 1.0), ("42.", 0.0), ("042", 0.0), ("", 0.0)])
def test_exact_match_compares_text(response: str, value: float) -> None:
    assert score("exact_match_reward", response, "42").value == value


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("1/2", "0.5", True),
        ("1,000", "1000", True),
        ("72.0", "72", True),
        ("$1,234.50", "1234.5", True),
        ("\\$ 5", "5", True),
        ("1\\,000", "1000", True),
        ("1{,}000", "1000", True),
        ("-\\frac{3}{4}", "-0.75", True),
        ("\\dfrac12", ".5", True),
        ("1 1/2", "1.5", True),
        ("-1 1/2", "-1.5", True),
        ("50%", "50", True),
        ("90^\\circ", "90", True),
        ("18 dollars", "18", True),
        ("18\\text{ dollars}", "18", True),
        ("**18**.", "18", True),
        ("+7", "7", True),
        ("−7", "-7", True),
        ("-7", "7", False),
        ("1/3", "0.333", False),
        ("1/0", "1", False),
        ("1,00", "100", False),
        ("3x+18", "18", False),
        ("18 or 19", "18", False),
        ("x + 1", "x+1", True),
        ("\\text{Paris}", "paris", True),
        ("London", "Paris", False),
    ],
)
def test_answers_agree_by_value(left: str, right: str, same: bool) -> None:
    assert agree(left, right) is same


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("from 3 to 5.", None),
        ("x2 and y3", None),
        ("16 - 7 = 9, 9*2 = 18 dollars", None),
        ("it is 1,080, I think", "1080"),
        ("about 2.50!", "2.5"),
        ("-3", "-3"),
        ("none", None),
    ],
)
def test_the_one_number_of_words(text: str, value: str | None) -> None:
    found = only_quantity(text)
    assert (None if found is None else found.value) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ("16 - 7 = 9, 9*2 = 18 dollars", " 18 dollars"),
        ("First 3.\nShe has 4. She pays $5.\nGood.", "She pays $5."),
        ("Answer: 5\nas 2 + 3 = 5", " 5"),
        ("so x = 1, y = 2", "so x = 1, y = 2"),
        ("word " * 1000 + "it is 7", "word " * 198 + "it is 7"),
    ],
)
def test_a_response_closes_with_its_answer(response: str, words: str) -> None:
    assert closing(response).strip() == words.strip()


def test_boxed_answers_nest_and_must_close() -> None:
    assert last_boxed("\\boxed{\\frac{a}{b}} .") == "\\frac{a}{b}"
    assert last_boxed("\\boxed{1} and \\boxed{2") == "1"
    assert last_boxed("\\boxed {3}") == "3"
    assert last_boxed("} {x}") is None


@pytest.mark.parametrize(
    "text",
    [
        *["\\boxed{" * 20000, "1," + "111," * 30000, "a " * 60000 + "!", "9" * 100000, "<think>" * 20000, "1/" * 60000],
        *[
            "(" * 100000,
            "9^" * 50000,
            "\\sqrt" * 30000,
            "answer is " * 20000,
            "=" * 100000,
            "5 " * 50000,
            "1e99" * 20000,
        ],
    ],
)
def test_hostile_responses_cost_linear_time(text: str) -> None:
    # A quadratic step over any of these takes minutes and would be seen as a hang.
    for name in set(REWARDS.names()) - {
        "math_verify_reward",
        "reward_model",
        "llm_judge_reward",
        "rubric_judge_reward",
        "code_reward",
    }:
        truth, most = {"countdown_reward": (ASKED, 0.1), "tool_call_reward": ("[]", 0.0)}.get(name, ("#### 5", 0.0))
        assert score(name, text, truth).value <= most
        assert score(name, f"<answer>{text}</answer>", truth).value <= most


def test_every_reward_is_documented() -> None:
    page = (Path(__file__).parents[5] / "docs" / "extending.md").read_text(encoding="utf-8")
    rows = page.partition("### Built-in rewards\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == [n for n in REWARDS.names() if REWARDS.builtin(n)]


def test_unknown_rewards_and_arguments_are_named_with_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"(?s)math_rewards.*did you mean 'math_reward'"):
        REWARDS.open("math_rewards")
    with pytest.raises(ConfigError, match="with_thought"):
        REWARDS.open("math_boxed_reward", {"with_thought": True})


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("<answer>3 * 8 / 1</answer>", 1.0),
        ("<answer> (8*3)*1 </answer>", 1.0),
        ("<answer>1</answer> or <answer>8/(1/3)</answer>", 1.0),
        ("<think>3*8*1</think>", 0.0),
        ("3*8*1 = 24", 0.0),
        ("<answer>3 * 8</answer>", 0.1),
        ("<answer>3 * 8 * 1 * 1</answer>", 0.1),
        ("<answer>3 * 8 * 1 = 24</answer>", 0.1),
        ("<answer>3 + 8 + 1</answer>", 0.1),
        ("<answer>3(8)1</answer>", 0.1),
        ("<answer>8**3//1</answer>", 0.1),
        ("<answer>3.8 + 1</answer>", 0.1),
        ("<answer>3 * 8 / (1 - 1)</answer>", 0.1),
        ("<answer>__import__('os').getpid()</answer>", 0.1),
        ("<answer>" + "(" * 1000 + "3*8*1" + ")" * 1000 + "</answer>", 0.1),
        ("<answer>" + "9" * 100_000 + "</answer>", 0.1),
        ("<answer>٣ * 8 * 1</answer>", 0.1),
        ("<answer></answer>", 0.1),
    ],
)
def test_countdown(answer: str, value: float) -> None:
    assert score("countdown_reward", answer, ASKED).value == value


def test_the_numbers_of_a_countdown_may_be_a_column_of_their_own() -> None:
    reward = REWARDS.open("countdown_reward", {})
    task = msgspec.structs.replace(TASK, raw={"nums": [2, 5], "target": 10})
    assert reward.score("<answer>2*5</answer>", "10", task).value == 1.0
    for truth in ("", "24", '{"target": 1}', '{"target": "x", "numbers": [1]}', '{"target": 1, "numbers": [true]}'):
        with pytest.raises(DataError, match="not a Countdown task"):
            reward.score("<answer>1</answer>", truth, TASK)


def cut_view(finish: str) -> RolloutView:
    span = (Span(0, 0, 0, 1),)
    return RolloutView((Response(text="", prompt=(1,), tokens=(2,), logprobs=(0.0,), spans=span, finish=finish),))


OVERLONG = {"enable_overlong_penalty": True, "penalty_factor": 0.5, "max_response_length": 12, "cache_length": 4}


@pytest.mark.parametrize(("tokens", "penalty"), [(1, 0.0), (8, 0.0), (9, -0.125), (12, -0.5), (40, -0.5)])
def test_the_reward_of_dapo_is_less_for_the_last_tokens_before_the_limit(tokens: int, penalty: float) -> None:
    span = (Span(0, 0, 0, tokens),)
    drawn = Response(text="", prompt=(1,), tokens=(2,) * tokens, logprobs=(0.0,) * tokens, spans=span, finish="stop")
    text = "The sum is five.\nAnswer: 5"
    result = REWARDS.open("math_dapo_reward", OVERLONG).score(text, "5", TASK, rollout=RolloutView((drawn,)))
    assert isinstance(result, RewardResult)
    assert (result.parts["accuracy"], result.parts["format_score"]) == (1.0, pytest.approx(penalty))
    plain = REWARDS.open("math_dapo_reward", {}).score(text, "5", TASK, rollout=RolloutView((drawn,)))
    assert isinstance(plain, RewardResult)
    assert plain.value == 1.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"penalty_factor": None}, "penalty_factor is not set"),
        ({"max_response_length": None}, "max_response_length is not set"),
        ({"cache_length": 12}, "cache_length is 12, and max_response_length 12"),
    ],
)
def test_a_penalty_for_length_needs_its_lengths(change: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        REWARDS.open("math_dapo_reward", {**OVERLONG, **change})


@pytest.mark.parametrize("name", ["math_reward", "accuracy_reward", "exact_match_reward"])
@pytest.mark.parametrize("invisible", ["\u200b", "\u200e", "\u202a", "\u2060", "\ufeff", "\u00ad"])
def test_what_nobody_sees_makes_no_answer_wrong(name: str, invisible: str) -> None:
    response = f"{invisible}1{invisible}8{invisible}"
    assert score(name, response, "18").parts["accuracy"] == 1.0
    assert score(name, "18", f"18{invisible}").parts["accuracy"] == 1.0


@pytest.mark.parametrize("box", ["<answer>18\u200b</answer>", "\\boxed{1\u200e8}"])
def test_marked_answers_may_hold_what_nobody_sees(box: str) -> None:
    assert score("math_reward", box, "18").parts["accuracy"] == 1.0
    if "boxed" in box:
        assert score("math_boxed_reward", box, "18").parts["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("response", "whole", "cut"),
    [
        ("So it is 18", 1.0, 0.0),
        ("The answer is 18", 1.0, 0.0),
        ("#### 18", 1.0, 0.0),
        ("#### 18\nand so", 1.0, 1.0),
        ("<answer>18</answer> and", 1.0, 1.0),
        ("<answer>18", 0.0, 0.0),
        ("\\boxed{18} which", 1.0, 1.0),
        ("\\boxed{18", 0.0, 0.0),
        ("18", 1.0, 0.0),
    ],
)
def test_of_a_cut_response_counts_what_it_marked_to_the_end(response: str, whole: float, cut: float) -> None:
    for name in ("math_reward", "accuracy_reward"):
        reward = REWARDS.open(name, {})
        for finish, value in (("stop", whole), ("length", cut)):
            result = reward.score(response, "18", TASK, rollout=cut_view(finish))  # type: ignore[call-arg]
            assert isinstance(result, RewardResult)
            assert result.parts["accuracy"] == value, (name, finish)
    exact = REWARDS.open("exact_match_reward", {})
    assert exact.score("18", "18", TASK, rollout=cut_view("stop")).value == 1.0  # type: ignore[call-arg, union-attr]
    assert exact.score("18", "18", TASK, rollout=cut_view("length")).value == 0.0  # type: ignore[call-arg, union-attr]


@pytest.mark.parametrize(
    ("name", "response", "truth", "extracted"),
    [
        ("math_reward", "<think>7 or 8</think> <answer> 8 </answer>", "7", "8"),
        ("math_reward", "so the answer is 18 dollars. Bye", "18", "18 dollars."),
        ("accuracy_reward", "2 + 2 = 5\n#### 5", "#### 4", "5"),
        ("math_boxed_reward", r"\boxed{1} and \boxed{2}", "3", "2"),
        ("math_boxed_reward", "nothing", "3", None),
        ("math_dapo_reward", r"\boxed{12}", "12", "12"),
        ("exact_match_reward", " 5\u200b ", "5", "5"),
        ("countdown_reward", "<answer> 3*8 </answer>", '{"target": 24, "numbers": [3, 8]}', "3*8"),
        ("format_reward", "5", "5", None),
    ],
)
def test_a_reward_notes_the_answer_compared(name: str, response: str, truth: str, extracted: str | None) -> None:
    assert score(name, response, truth).extracted == extracted


@pytest.mark.parametrize(
    ("returned", "note"),
    [("x" * 5000, "x" * limits.EXTRACTED_CHARS), ("a\ud800b", "a?b"), (None, None), (["1"], "['1']")],
)
def test_a_note_of_any_reward_is_bounded_text(returned: object, note: str | None) -> None:
    scorer = Scorer("own", REWARDS.open("format_reward"), on_thread=False)
    checked = scorer.checked(RewardResult(value=1.0, extracted=cast(Any, returned)), cast(Any, None))
    assert checked.extracted == note
