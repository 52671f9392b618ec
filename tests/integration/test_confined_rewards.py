"""A reward of somebody else's source text, in a sandbox: the same figures, and nothing else of the machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine
from synthetic.worlds.bad_programs import run_python

from rftd.ops.errors import ConfigError, RolloutError
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards import confined as confined_rewards
from rftd.workers.workflows.rewards.scorer import open_scorer
from rftd.workers.workflows.runner import WorkflowRunner
from rftd.workers.workflows.sandbox.sandbox import SandboxBounds

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TASK = Task(
    taskset="t", row=3, epoch=0, prompt="2+2?", messages=(), truth="4", workflow="simple_workflow", raw={"k": 7}
)
REWARDS = {
    "a number": ("def f(response, truth):\n    return float(response == truth)", {}),
    "parts": ("def f(response, task):\n    return {'right': 1.0 * (response == task.truth), 'k': task.raw['k']}", {}),
    "arguments": ("def f(response, weight):\n    return weight * len(response)", {"weight": 0.5}),
    "a coroutine": ("async def f(response, truth):\n    return 1", {}),
    "a class": (
        "class f:\n    def __init__(self, weight):\n        self.weight = weight\n"
        "    def score(self, response, truth, task):\n        return self.weight",
        {"weight": 2},
    ),
    "a package": ("import numpy as np\ndef f(response):\n    return np.float64(len(response))", {}),
    "what it prints": ("def f(response):\n    print('x')\n    return 1", {}),
}


@pytest.fixture(autouse=True)
async def namespaces() -> None:
    """Skips where the machine has no namespaces."""
    try:
        await run_python("pass")
    except RolloutError as error:
        pytest.skip(error.what)


@pytest.mark.parametrize("kind", REWARDS)
async def test_a_reward_in_the_sandbox_scores_as_in_the_worker(kind: str) -> None:
    text, arguments = REWARDS[kind]
    sources = {"mine.py": text}
    scored = [
        await open_scorer("mine.py:f", arguments, sources=sources, confined=confined).score("4", TASK)
        for confined in (False, True)
    ]
    assert scored[0] == scored[1]


BAD = {
    "leaves": ("def f(response):\n    raise SystemExit(0)", "left no answer"),
    "raises": ("def f(response):\n    return 1 / 0", "ZeroDivisionError"),
    "answers with text": ("def f(response):\n    return 'good'", "could not convert"),
    "answers with NaN": ("def f(response):\n    return float('nan')", "not a finite number"),
    "forges another answer": (
        "import os\ndef f(response):\n    open('.returned.json', 'w').write('[1]')\n    os._exit(0)",
        "left no answer",
    ),
    "is missing": ("def g(response):\n    return 1", "has no attribute 'f'"),
    "never ends": ("def f(response):\n    while True:\n        pass", "its bound of 2 s"),
    "forks": (
        "import os\ndef f(response):\n    while True:\n        try:\n            os.fork()\n"
        "        except OSError:\n            pass",
        "its bound of 64 processes",
    ),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_reward_that_goes_wrong_fails_its_rollout_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        confined_rewards, "BOUNDS", SandboxBounds(wall_s=2.0 if kind == "never ends" else 60.0, processes=64)
    )
    text, reason = BAD[kind]
    with pytest.raises(RolloutError, match=reason):
        await open_scorer("mine.py:f", sources={"mine.py": text}, confined=True).score("4", TASK)


async def test_a_reward_sees_neither_files_nor_variables_nor_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "canary")
    (tmp_path / "secret").write_text("canary")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        text = (
            "import os, socket\ndef f(response):\n    seen = 'SECRET_OF_THE_WORKER' in os.environ\n"
            f"    seen += os.path.exists('{tmp_path}')\n    try:\n"
            f"        socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 5)\n        seen += 1\n"
            "    except OSError:\n        pass\n    return float(seen)"
        )
        scored = await open_scorer("mine.py:f", sources={"mine.py": text}, confined=True).score("4", TASK)
    assert scored.value == 0.0


async def test_a_workflow_of_somebody_elses_text_is_refused() -> None:
    taskset = TasksetSpec(
        name="t", path="t.jsonl", workflow="mine.py:run", reward="exact_match_reward", sampling=SamplingSpec()
    )
    text = "async def run(task, model, reward):\n    raise AssertionError('this runs in the worker')"
    with pytest.raises(ConfigError, match="only rewards run in a sandbox"):
        WorkflowRunner(
            taskset,
            model=SPEC,
            engine=ScriptedEngine(),
            tokenizer=ByteTokenizer(),
            sources={"mine.py": text},
            confined=True,
        )
