"""Rewards and workflows from Python text: what they get, what is refused, and where."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from rftd.ops.errors import ConfigError, RolloutError
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.scorer import Scorer, open_scorer
from rftd.workers.workflows.source import SourceName, check_source, source_name
from rftd.workers.workflows.workflow_source import open_workflow_source

TASK = Task(taskset="sums", row=3, epoch=0, prompt="1+1=", messages=(), truth="2", workflow="simple_workflow")

PARTS = """
from rftd.workers.api import RewardResult

def score():
    return RewardResult.of(a=3.0)
"""
COUNTED = """
import dataclasses

@dataclasses.dataclass
class Counter:
    calls: int = 0

COUNTER = Counter()

def score():
    COUNTER.calls += 1
    return COUNTER.calls
"""


def opened(text: str, name: str = "score", **arguments: Any) -> Scorer:
    return open_scorer(f"mine.py:{name}", arguments, sources={"mine.py": text})


def scored(text: str, name: str = "score", response: str = "2", **arguments: Any) -> tuple[float, dict[str, float]]:
    reward = asyncio.run(opened(text, name, **arguments).score(response, TASK))
    return reward.value, reward.parts


def test_names_of_sources_and_of_registered_parts_differ() -> None:
    assert source_name("./a b/mine.py:short") == SourceName("./a b/mine.py", "short")
    for text in ("math_reward", "mine.py", "mine:short", "mine.py:", "mine.py:a.b", "", None, "mine.py:1"):
        assert source_name(text) is None, text


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("def score(response):\n    return len(response)", (1.0, {})),
        ("def score(truth, response):\n    return response == truth", (1.0, {})),
        ("def score(task):\n    return task.row", (3.0, {})),
        ("async def score(response):\n    return {'right': 1.0, 'form': 0.5}", (1.5, {"right": 1, "form": 0.5})),
        ("def score(response, rollout=None):\n    return rollout is None", (1.0, {})),
        ("class score:\n    def score(self, response, truth, task):\n        return 0.25", (0.25, {})),
        ("score = lambda response: 0.75", (0.75, {})),
        (PARTS, (3.0, {"a": 3.0})),
    ],
)
def test_a_function_gets_the_parameters_in_its_signature(text: str, reward: tuple[float, dict[str, float]]) -> None:
    assert scored(text) == reward


def test_arguments_are_further_parameters() -> None:
    text = "def score(response, scale, bonus=1.0):\n    return scale * len(response) + bonus"
    assert scored(text, scale=2) == (3.0, {})
    assert scored(text, scale=2, bonus=0.0) == (2.0, {})


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ("def score(response, scale):\n    return 1", {}, "parameter 'scale' that nothing fills"),
        ("def score(response):\n    return 1", {"scale": 2}, "takes no argument 'scale'"),
        ("def score(response):\n    return 1", {"response": "x"}, "takes no argument 'response'"),
        ("def score(response, /):\n    return 1", {}, "parameter 'response' that nothing fills"),
        ("score = 3", {}, "is a int"),
        ("class score:\n    def __init__(self, scale):\n        pass", {}, "does not take its arguments"),
        ("class score:\n    pass", {}, "has no method 'score'"),
        ("import sys\nsys.exit(3)\ndef score():\n    pass", {}, "cannot be imported: SystemExit: 3"),
        ("import no_such_package\ndef score():\n    pass", {}, "No module named 'no_such_package'"),
        ("def other():\n    pass", {}, "defines no 'score'"),
    ],
)
def test_a_source_that_cannot_be_opened_is_refused(text: str, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.py") as refused:
        opened(text, **arguments)
    assert problem in str(refused.value)


def test_a_failing_function_names_its_row_and_its_exit_ends_only_the_rollout() -> None:
    for text, problem in (
        ("def score(response):\n    return undefined_name", "NameError"),
        ("def score(response):\n    raise SystemExit(2)", "SystemExit"),
        ("def score(response):\n    return 'many'", "not a finite number"),
        ("def score(response):\n    return [1.0]", "not a finite number"),
        ("def score(response):\n    return None", "not a finite number"),
        ("def score(response):\n    return float('nan')", "not a finite number"),
        ("def score(response):\n    return {'a': {'b': 1}}", "not a finite number"),
        ("def score(response):\n    import no_such_package", "No module named 'no_such_package'"),
    ):
        with pytest.raises(RolloutError, match="row 3") as failed:
            scored(text)
        assert problem in str(failed.value)
        assert "mine.py:score" in str(failed.value)


def test_equal_text_is_one_module_and_changed_text_another() -> None:
    text = COUNTED
    assert scored(text)[0] == 1.0
    assert scored(text)[0] == 2.0
    assert scored(text + "\n")[0] == 1.0
    assert len([name for name in sys.modules if name.startswith("rftd_source_")]) >= 2


def test_checks_never_run_the_source() -> None:
    ran = "raise AssertionError('it ran')\ndef score():\n    pass"
    check_source(SourceName("mine.py", "score"), ran, imports=True)
    for text, problem, where in (
        ("def score(:\n", "is no Python", "mine.py:1"),
        ("def scores():\n    pass", "defines no 'score'", "mine.py"),
        ("import os\nimport helper_of_mine\ndef score():\n    pass", "imports 'helper_of_mine'", "mine.py:2"),
        ("from . import beside\ndef score():\n    pass", "imports '.'", "mine.py:1"),
    ):
        with pytest.raises(ConfigError) as refused:
            check_source(SourceName("mine.py", "score"), text, imports=True)
        assert problem in str(refused.value)
        assert refused.value.where == where


def test_a_workflow_is_a_coroutine_function_or_a_class() -> None:
    name = SourceName("flow.py", "play")
    ran = asyncio.run(
        open_workflow_source(name, "async def play(task, times):\n    return [task] * times", {"times": 2}).run(
            "a task",  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
        )
    )
    assert ran == ["a task", "a task"]
    with pytest.raises(ConfigError, match="no coroutine function"):
        open_workflow_source(name, "def play(task):\n    pass", {})
