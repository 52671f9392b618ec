"""`code_reward`: programs of responses in a real sandbox, against every form of tests; none reaches its own verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from synthetic.worlds.bad_programs import run_python

from rftd.ops.errors import RolloutError
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.code import last_block, read_tests
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.scorer import open_scorer

SUMS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
ADDS = "a, b = map(int, input().split())\nprint(a + b)"


def answer(program: str) -> str:
    return f"I add them.\n```python\n{program}\n```\nDone."


async def scored(response: str, truth: Any, **arguments: Any) -> RewardResult:
    text = truth if isinstance(truth, str) else json.dumps(truth)
    task = Task(taskset="t", row=3, epoch=0, prompt="?", messages=(), truth=text, workflow="w", raw={"checks": text})
    return await open_scorer("code_reward", arguments).score(response, task)


@pytest.fixture
async def namespaces() -> None:
    """Skips where the machine has no namespaces."""
    try:
        await run_python("pass")
    except RolloutError as error:
        pytest.skip(error.what)


in_a_sandbox = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.usefixtures("namespaces")]
FORMS: list[tuple[str, Any]] = [
    (ADDS, SUMS),
    ("if __name__ == '__main__':\n    a, b = map(int, input().split())\n    print(a + b)", SUMS),
    ("import sys\nprint(sum(map(int, sys.stdin.read().split())))\nsys.exit(0)", SUMS),
    (ADDS, [{"input": "1 2", "output": "3"}, {"input": "5 5", "output": "10"}]),
    ("print(0.1 + 0.2)", [{"input": "", "output": "0.3"}]),
    ("def add(a, b):\n    print('adding')\n    return a + b", {"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}),
    (
        "class Solution:\n    def pair(self, n):\n        return (n, n)",
        [{"input": [2], "output": [2, 2], "fn_name": "pair"}],
    ),
    ("def add(a, b):\n    return a + b", ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]),
    ("def add(a, b):\n    return a + b", "def check(f):\n    assert f(1, 2) == 3\n\ncheck(add)"),
]


class TestInASandbox:
    pytestmark = in_a_sandbox

    @pytest.mark.parametrize(("program", "tests"), FORMS)
    async def test_a_right_program_passes_every_form_of_tests(self, program: str, tests: Any) -> None:
        result = await scored(answer(program), tests)
        assert (result.value, result.parts) == (1.0, {"tests_passed": 1.0})
        assert result.extracted is not None and result.extracted.strip() == program

    @pytest.mark.parametrize(
        ("program", "tests"),
        [
            ("print(4)", SUMS),
            ("print(1 / 0)", SUMS),
            ("this is no Python", SUMS),
            ("print(3)\nraise SystemExit(1)", [{"input": "", "output": "3"}]),
            ("while True:\n    pass", SUMS),
            ("while True:\n    print('x' * 1000)", SUMS),
            ("kept = []\nwhile True:\n    kept.append(bytearray(1 << 22))", SUMS),
            ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", SUMS),
            # Neither the end nor the words of a passed assertion can be had without the assertion.
            ("import os\nos._exit(0)", ["assert False"]),
            ("raise SystemExit(0)", ["assert False"]),
            ("def add(a, b):\n    return 4", {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}),
            ("def add(a, b):\n    return {3}", {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}),
            ('print(\'[["done", "3", ""]]\')', [{"input": "", "output": "3"}]),
            # The output of the verdict is out of reach.
            (
                "import glob, os\nfor path in glob.glob('/proc/[0-9]*/fd/1'):\n    try:\n"
                '        open(path, \'w\').write(\'[["done", "3", ""]]\')\n    except OSError:\n        pass',
                [{"input": "", "output": "3"}],
            ),
        ],
    )
    async def test_a_wrong_or_forging_program_earns_nothing_and_fails_no_rollout(
        self, program: str, tests: Any
    ) -> None:
        result = await scored(answer(program), tests, timeout_s=1.0, memory_mib=128)
        assert (result.value, result.parts) == (0.0, {"tests_passed": 0.0})

    async def test_partial_pays_the_share_of_the_tests_of_a_column(self) -> None:
        assert (await scored(answer("print(3)"), SUMS)).value == 0.0
        assert (await scored(answer("print(3)"), SUMS, partial=True, tests_column="checks")).value == 0.5


def test_the_last_complete_block_is_the_program() -> None:
    assert last_block("```python\na\n```\n```py\nb\n```\n```python\ncut off") == "b\n"
    assert last_block("no block, and `code` in a line") is None


@pytest.mark.parametrize("tests", ["", None, 5, "{}", "[]", "[1]", '{"inputs": [1], "outputs": []}'])
def test_tests_in_no_known_form_are_refused_by_name(tests: object) -> None:
    with pytest.raises(RolloutError, match="the tests of the row are in no known form"):
        read_tests(tests)
