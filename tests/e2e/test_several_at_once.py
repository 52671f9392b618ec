"""Two experiments at once in one daemon with worker processes, which is killed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.streams.events.worker import WorkerStarted

LONG = ("stages=[]", "buffer.total_steps=60", "explorer.eval_interval=1000")


@pytest.mark.e2e
def test_both_go_on_after_a_kill_of_the_daemon(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--slots", "2")
    with scene.host:
        names = [scene.submit(EXPERIMENT, *LONG, f"name={name}") for name in ("left", "right")]
        for name in names:
            scene.until_step(name, 8)
        scene.kill("daemon", "")
        for name in names:
            page = scene.until_ended(name)
            assert page.experiment.summary.state == "completed", page.experiment.summary
            assert page.experiment.books.balance == 0
        assert scene.host.restarts == 1
    report = scene.verified()
    assert report.clean, report.findings
    assert [each.steps for each in report.experiments] == [60, 60]
    slots = {(event.role, event.slot) for event in scene.events(WorkerStarted)}
    assert slots == {("trainer", -1), ("explorer", 0)}, "both experiments' leases lie in one partition"
