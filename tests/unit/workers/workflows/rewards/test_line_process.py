"""A process that does not answer is ended, and the next question goes to a new one."""

from __future__ import annotations

import pytest

from rftd.workers.workflows.rewards.line_process import LineProcess, ProcessEnded

READS_AND_SAYS_NOTHING = "json.tool"
"""Of the standard library: it waits for the end of its input."""


def test_a_process_that_says_nothing_is_ended_with_the_reason() -> None:
    process = LineProcess(READS_AND_SAYS_NOTHING, timeout_s=0.5)
    for _ in range(2):
        with pytest.raises(ProcessEnded, match=r"ended with status -9: no answer within 0\.5 s") as ended:
            process.ask(["a question"])
        assert ended.value.status == -9


def test_one_that_ends_by_itself_is_said_to_have_ended() -> None:
    with pytest.raises(ProcessEnded, match=r"ended with status 1$"):
        LineProcess("no_module_of_this_name", timeout_s=120.0).ask("a question")
