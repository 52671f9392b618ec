"""Agents' commands through the daemon: what they had drawn is what is trained, whoever is killed."""

from __future__ import annotations

import random
import shutil

import pytest
from synthetic.until import poll
from synthetic.worlds.agent_run import AgentRun

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl"),
]


def test_kills_of_explorer_agent_sandbox_and_daemon_lose_and_repeat_nothing(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random
) -> None:
    run = AgentRun(tmp_path_factory.mktemp("agents"), steps=8)
    with run.scene.host:
        name = run.submit()
        run.kill_each(name, 1, chance)
        page = run.scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary.reason
        assert page.experiment.books.balance == 0
        report = run.scene.verified()
        assert report.clean, report.findings
        assert run.check() == 8 * 4 * 4
        poll(lambda: not run.left(), told=run.left)
