"""An environment and an experience pipeline: each episode is judged and trained once, whoever is killed."""

from __future__ import annotations

import random

import pytest
from synthetic.until import poll
from synthetic.worlds.environment_run import PipelineRun

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_kills_of_pipeline_environment_server_and_daemon_lose_and_repeat_nothing(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random
) -> None:
    run = PipelineRun(tmp_path_factory.mktemp("games"), steps=4)
    with run.scene.host:
        name = run.submit()
        run.kill_each(name, 1, chance)
        page = run.scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary.reason
        assert page.experiment.books.balance == 0
        report = run.scene.verified()
        assert report.clean, report.findings
        assert run.check() == 4 * 4 * 4
        assert run.judged() >= 4 * 4 * 4
        poll(lambda: not run.left(), told=run.left)
