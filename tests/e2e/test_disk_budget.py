"""A daemon whose folder grows over its budget pauses the run before a write fails; room again, and it goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene

BUDGET, BALLAST_BYTES = "256MiB", 256 << 20


def readiness(scene: Scene, wanted: int) -> str:
    """What /readyz says once it answers with this status."""
    deadline_s = time.monotonic() + 60.0
    while (said := scene.get("/readyz?verbose")).status_code != wanted:
        assert time.monotonic() < deadline_s, said.text
        time.sleep(0.05)
    return said.text


@pytest.mark.e2e
def test_a_budget_is_kept_and_the_run_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--disk-budget", BUDGET)
    ballast = scene.data.root / "ballast"
    with scene.host:
        name = scene.submit(EXPERIMENT)
        scene.until_step(name, 6)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)
        scene.until_state(name, "paused")
        shown = scene.rftd("get", name).out
        assert "disk_budget: " in shown, shown
        assert "of the budget of 256.0 MiB are used" in shown, shown
        why = scene.rftd("why", name)
        assert why.status == 0, why
        assert "disk_budget" in why.out, why
        assert "--disk-budget" in why.out, why
        assert "disk_budget" in readiness(scene, 503)
        resumed = scene.rftd("resume", name)
        assert resumed.status == 5, resumed
        assert "continues automatically" in resumed.err, resumed
        assert 'rftd_disk_short{cause="disk_budget"} 1.0' in scene.get("/metrics").text
        scene.kill("daemon", name)
        scene.until_state(name, "paused")  # the next daemon sees the same
        ballast.unlink()
        page = scene.until_ended(name)
        assert page.experiment.summary.state == "completed"
        assert page.experiment.summary.step == 65
        readiness(scene, 200)
        said = scene.rftd("events", name, "--type", "experiment.paused", "-o", "jsonl").out
        assert "disk_budget" in said, said
        report = scene.verified()
        assert report.clean, report.findings
