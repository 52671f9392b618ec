"""`CodeReward`: the program in a response, run in a sandbox against the tests of its row."""

from __future__ import annotations

import json
import math
import re
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.sandbox.registry import open_sandbox
from rftd.workers.workflows.sandbox.run_folder import rollout_folder
from rftd.workers.workflows.sandbox.sandbox import SandboxBounds, SandboxCommand

_BLOCK: Final = re.compile(r"^[ \t]*```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
"""A block of Python in Markdown."""
_OUTPUT_BYTES: Final = 256 * 1024
"""Bytes of output of one test."""
_CASES: Final = 64
"""Tests of a row run at most: the first ones."""
_RELATIVE: Final = 1e-6
"""Relative and absolute tolerance of numbers."""
_START_S: Final = 10.0
"""Seconds for the start of the program, besides its tests."""

Seconds = Annotated[float, msgspec.Meta(gt=0, le=600)]
"""Type of a time limit."""
MiB = Annotated[int, msgspec.Meta(ge=32, le=65536)]
"""Type of a memory limit."""


class CodeTest(NamedTuple):
    """One test: a case for the program, with the expected output or value."""

    case: dict[str, Any]
    """`input`: standard input; `function` and `arguments`; or `code`: assertions."""
    expected: Any = None
    """Expected output or value."""


class CodeReward:
    """1 if the last Python block of the response passes all tests of the row, else 0; with `partial`, the share passed.

    Programs run in a sandbox in namespaces, without network and files, each test in a process of its own.
    """

    def __init__(
        self,
        *,
        partial: bool = False,
        tests_column: str = "",
        timeout_s: Seconds = 5.0,
        memory_mib: MiB = 512,
    ) -> None:
        """`timeout_s` bounds one test; the tests are in the row's column `tests_column`, or by default in the truth."""
        self._partial = partial
        self._tests_column = tests_column
        self._timeout_s = timeout_s
        self._memory_mib = memory_mib
        self._sandbox = open_sandbox("namespaces")
        """Sandbox of the program."""

    async def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """Returns the reward, with `tests_passed`: the share passed, without `partial` until a test fails.

        Raises RolloutError for tests in no known form.
        """
        tests = read_tests(task.raw.get(self._tests_column) if self._tests_column else truth)
        program = last_block(response)
        if program is None:
            return RewardResult(value=0.0, parts={"tests_passed": 0.0})
        outputs = await self._outputs(program, tests)
        passed = sum(_is_passed(test, *output[:2]) for test, output in zip(tests, outputs, strict=False))
        share = passed / len(tests)
        return RewardResult(
            value=share if self._partial else float(passed == len(tests)),
            parts={"tests_passed": share},
            extracted=program,
        )

    async def _outputs(self, program: str, tests: list[CodeTest]) -> list[list[str]]:
        """Returns [ended, output, error] of each test run; none if the program reached a bound of the sandbox."""
        request = {
            "program": program,
            "cases": [test.case for test in tests],
            "timeout_s": self._timeout_s,
            "output_bytes": _OUTPUT_BYTES,
            "all_cases": self._partial,
        }
        wall_s = _START_S + self._timeout_s * len(tests)
        # Every byte of a test's output may become six in JSON.
        output_mib = 1 + 6 * len(tests) * _OUTPUT_BYTES // limits.MIB
        bounds = SandboxBounds(
            wall_s=wall_s, memory_mib=self._memory_mib, disk_mib=64, processes=64, output_mib=output_mib
        )
        async with rollout_folder() as folder:
            report = await self._sandbox.run(
                SandboxCommand(
                    words=(sys.executable, "-Ic", _cases_program()),
                    folder=folder,
                    bounds=bounds,
                    input=json.dumps(request).encode(),
                    warm=True,
                    tail_bytes=output_mib * limits.MIB,
                )
            )
        if report.bound or report.exit:
            return []
        outputs: list[list[str]] = json.loads(report.stdout)
        return outputs


def last_block(response: str) -> str | None:
    """Returns the last complete block of Python in a response; None without one."""
    blocks = _BLOCK.findall(response)
    return blocks[-1] if blocks else None


def read_tests(tests: object) -> list[CodeTest]:
    """Returns the tests of a row, at most the first 64.

    Known forms: `{"inputs": [...], "outputs": [...], "fn_name": ...}` as in APPS; a list of `{"input", "output"}`; a
    list of assertions as in MBPP, or other text, Python run after the program. Raises RolloutError for others.
    """
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except ValueError:
            tests = [tests] if isinstance(tests, str) and tests.strip() else None
    read: list[CodeTest] = []
    if isinstance(tests, dict):
        inputs, outputs = tests.get("inputs"), tests.get("outputs")
        if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
            read = [_read_test(*pair, tests.get("fn_name")) for pair in zip(inputs, outputs, strict=True)]
    elif isinstance(tests, list) and all(isinstance(test, str) for test in tests):
        read = [CodeTest({"code": test}) for test in tests]
    elif isinstance(tests, list) and all(isinstance(test, dict) and "input" in test for test in tests):
        read = [_read_test(test["input"], test.get("output", ""), test.get("fn_name")) for test in tests]
    if not read:
        raise RolloutError(
            "the tests of the row are in no known form",
            fix='write {"inputs": [...], "outputs": [...]}, a list of {"input", "output"}, or assertions',
        )
    return read[:_CASES]


def _read_test(given: Any, expected: Any, function: Any) -> CodeTest:
    """Returns a test of an input, or of a function's arguments, with its expected output or value."""
    if function:
        arguments = given if isinstance(given, list) else [json.loads(line) for line in str(given).splitlines()]
        if isinstance(expected, str):
            expected = json.loads(expected)
        return CodeTest({"function": str(function), "arguments": arguments}, expected)
    lines = ["\n".join(map(str, text)) if isinstance(text, list) else str(text) for text in (given, expected)]
    return CodeTest({"input": lines[0]}, lines[1])


def _is_passed(test: CodeTest, ended: str, output: str) -> bool:
    """True if the test ended normally with the expected output or value."""
    if ended != "done":
        return False
    if "code" in test.case:
        return True
    if "function" in test.case:
        try:
            returned = json.loads(output)
        except ValueError:
            return False
        # APPS writes a returned value as a list of one.
        return _is_equal(returned, test.expected) or (
            isinstance(test.expected, list) and len(test.expected) == 1 and _is_equal(returned, test.expected[0])
        )
    return _same_lines(output, str(test.expected))


def _is_equal(returned: Any, expected: Any) -> bool:
    """True if two values are equal, numbers to a millionth."""
    if isinstance(returned, float) or isinstance(expected, float):
        numbers = isinstance(returned, int | float) and isinstance(expected, int | float)
        return numbers and math.isclose(returned, expected, rel_tol=_RELATIVE, abs_tol=_RELATIVE)
    return bool(returned == expected)


def _same_lines(output: str, expected: str) -> bool:
    """True if all words agree line by line, numbers with a point to a millionth."""
    lines, expected_lines = ([line.split() for line in text.rstrip().splitlines()] for text in (output, expected))
    if len(lines) != len(expected_lines):
        return False
    return all(
        len(words) == len(expected_words) and all(map(_same_word, words, expected_words))
        for words, expected_words in zip(lines, expected_lines, strict=True)
    )


def _same_word(word: str, expected: str) -> bool:
    """True if two words are equal, or numbers with a point equal to a millionth."""
    if word == expected:
        return True
    if "." not in expected and "e" not in expected.lower():
        return False
    try:
        return math.isclose(float(word), float(expected), rel_tol=_RELATIVE, abs_tol=_RELATIVE)
    except ValueError:
        return False


@cache
def _cases_program() -> str:
    """Returns the text of the program that runs the tests."""
    return Path(__file__).with_name("code_cases.py").read_text(encoding="utf-8")
