"""`rftd run`: one experiment to its end, by a daemon for that time or by the one that is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.streams.events.experiment import ExperimentCompleted

pytestmark = pytest.mark.e2e
SIX_STEPS = EXPERIMENT.partition("stages:")[0].replace("total_steps: 60", "total_steps: 6")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A scene whose daemon does not run yet, of a user who has no other."""
    scene = Scene(tmp_path, environ={"XDG_STATE_HOME": str(tmp_path / "state")})
    scene.write(SIX_STEPS)
    return scene


def test_without_a_daemon_one_runs_as_long_as_the_experiment(scene: Scene) -> None:
    told = scene.rftd("run", "--config", "exp.yaml")
    assert told.status == 0, told
    assert f"no daemon runs: one is started in {scene.data.root}" in told.err
    gone = scene.rftd("ls")
    assert gone.status == 4, gone
    with scene.host:
        assert scene.rftd("ls").out.count("completed") == 1
        # As there, the file with more steps goes on from what ended in its folder.
        scene.write(SIX_STEPS.replace("total_steps: 6", "total_steps: 9"))
        beside = scene.rftd("run", "-c", "exp.yaml")
        assert beside.status == 0, beside
        assert "no daemon runs" not in beside.err
        assert scene.rftd("ls").status == 0, "the daemon that was there goes on"
        assert len(scene.events(ExperimentCompleted)) == 2


def test_what_cannot_run_ends_with_its_own_status(scene: Scene) -> None:
    scene.write("mode: both\n", "wrong.yaml")
    told = scene.rftd("run", "--config", "wrong.yaml")
    assert told.status == 2, told
    assert "Traceback" not in told.err
    assert "error[RFTD-CFG" in told.err
    missing = scene.rftd("run")
    assert missing.status == 2
    assert "--config" in missing.err
    assert scene.rftd("ls").status == 4, "no daemon stays behind"
