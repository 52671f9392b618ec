"""`math_verify_reward`: what math-verify says, from any thread, within bounds; refused by name where it is missing."""

from __future__ import annotations

import asyncio
import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from rftd.ops.errors import ConfigError
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.scorer import open_scorer
from rftd.workers.workflows.runner import check_names

NAME = "math_verify_reward"
installed = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="the extra `math` is missing")
RIGHT = {"accuracy": 1.0, "judge_gave_up": 0.0}
WRONG = {"accuracy": 0.0, "judge_gave_up": 0.0}
GAVE_UP = {"accuracy": 0.0, "judge_gave_up": 1.0}


def task(truth: str) -> Task:
    return Task(taskset="t", row=0, epoch=0, prompt="?", messages=(Message("user", "?"),), truth=truth, workflow="w")


def score(response: str, truth: str, **arguments: object) -> RewardResult:
    return asyncio.run(open_scorer(NAME, arguments).score(response, task(truth)))


@installed
@pytest.mark.parametrize(
    ("response", "truth", "parts"),
    [
        ("so \\boxed{\\frac{1}{2}}", "0.5", RIGHT),
        ("so \\boxed{\\frac{1}{3}}", "0.5", WRONG),
        ("<answer>(x+1)^2</answer>", "Thus $\\boxed{x^2+2x+1}$.", RIGHT),
        ("The answer is $2\\sqrt{3}$.", "\\sqrt{12}", RIGHT),
        ("The answer is $3\\sqrt{2}$.", "\\sqrt{12}", WRONG),
        ("\\boxed{[0, 1)}", "[0,1)", RIGHT),
        ("\\boxed{" + "1 + " * 1000 + "1}", "1001", GAVE_UP),
        ("", "1", WRONG),
    ],
)
def test_answers_are_judged_off_the_main_thread(response: str, truth: str, parts: dict[str, float]) -> None:
    scored = score(response, truth)
    assert (scored.value, scored.parts) == (parts["accuracy"], parts)


@installed
def test_an_answer_that_takes_too_long_is_wrong_and_the_next_is_judged() -> None:
    async def both() -> list[RewardResult]:
        scorer = open_scorer(NAME, {"timeout_s": 0.5})
        assert not scorer.quick
        asked = [("\\boxed{9^{9^{9^{9}}}}", "1"), ("\\boxed{7}", "7")]
        return list(await asyncio.gather(*(scorer.score(response, task(truth)) for response, truth in asked)))

    hard, easy = asyncio.run(both())
    assert hard.parts == GAVE_UP
    assert easy.parts == RIGHT


@pytest.mark.parametrize("seconds", [0, -1, 61, "5"])
def test_a_time_that_is_none_is_refused(seconds: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    with pytest.raises(ConfigError, match="timeout_s"):
        REWARDS.open(NAME, {"timeout_s": seconds})


def test_without_the_library_the_submission_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "math_verify" else find(name))
    with pytest.raises(ConfigError, match="math_verify_reward") as caught:
        check_names(TasksetSpec(name="t", path="x", workflow="math_workflow", reward=NAME))
    assert "rftd[math]" in str(caught.value.fix)
