"""The process of a reward runs no code that a variable of its explorer chooses, and has no key."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from rftd.workers.workflows.rewards.line_process import LineProcess, process_environment
from rftd.workers.workflows.rewards.scorer import open_scorer


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
