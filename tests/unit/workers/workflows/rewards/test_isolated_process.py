"""The process of a reward: ended if it does not answer, without code by an explorer's variable, and without a key."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from rftd.workers.workflows.rewards.line_process import LineProcess, ProcessEnded, process_environment
from rftd.workers.workflows.rewards.scorer import open_scorer

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


def test_a_variable_of_the_explorer_does_not_choose_what_its_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONWARNINGS imports the module of a category; `antigravity` opens a browser, and BROWSER says what that is."""
    owned = tmp_path / "owned"
    monkeypatch.setenv("PYTHONWARNINGS", "all:0:antigravity.x:0:0")
    monkeypatch.setenv("BROWSER", f"touch {owned} %s")
    process = LineProcess("json.tool", timeout_s=5.0)
    with pytest.raises(Exception, match="ended with status"):
        process.ask(["never answered"])
    assert not owned.exists()


def test_what_an_experiment_gives_its_explorers_is_not_given_to_processes_of_rewards() -> None:
    explorers = {"PATH": "/bin", "LC_ALL": "C", "OMP_NUM_THREADS": "3", "OPENAI_API_KEY": "k", "LD_PRELOAD": "x.so"}
    assert process_environment(explorers) == {"PATH": "/bin", "LC_ALL": "C", "OMP_NUM_THREADS": "3"}


def test_the_process_has_the_environment_that_was_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an explorer does it: the environment is made first, then the experiment's variables are taken."""
    pytest.importorskip("math_verify")
    made = process_environment(os.environ)
    for name in ("PYTHONPATH", "OPENAI_API_KEY", "GCONV_PATH", "TMPDIR"):
        monkeypatch.setenv(name, "/canary")
    scorer = open_scorer("math_verify_reward", environ=made)
    process = scorer._reward._judge.process  # type: ignore[attr-defined]
    assert process.ask(["\\boxed{1}", "\\boxed{1}", 5.0])
    assert psutil.Process(process._process.pid).environ() == made
