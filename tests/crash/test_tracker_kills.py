"""Trackers of a real run: they are killed and so is the daemon, and they show what `rftd steps` shows."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Final

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.tracking.live import said_by_steps, timeless, trackers_of
from synthetic.tracking.tracked import shown_by
from synthetic.until import poll

from rftd.workers.tracking.cursor import CursorFile

KINDS: Final = ("jsonl", "tensorboard")
TRACKED: Final = (
    *("monitor={monitor_type: jsonl, also: [tensorboard]}", "stages=[]"),
    *("trainer.engine_args.step_s=0.6", "buffer.total_steps=150"),
)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize(("target", "count"), [("tracker", 20), ("daemon", 4)])
def test_killed_trackers_lose_and_double_nothing(
    tmp_path: Path, chance: random.Random, target: str, count: int
) -> None:
    scene = Scene(tmp_path)
    with scene.host:
        name = scene.submit(EXPERIMENT, *TRACKED)
        id = scene.until_step(name, 1).experiment.summary.id
        kills = 0
        while kills < count:
            time.sleep(chance.uniform(0.1, 1.0))
            kills += kill(scene, target, id)
            page = scene.page(name)
            assert page is None or page.experiment.summary.state == "running", f"ended after {kills} kills"
        if target == "tracker":
            assert "2 follow the experiments under way" in scene.rftd("doctor").out
        assert scene.until_ended(name).experiment.summary.state == "completed"
        job = tmp_path / "checkpoints" / "crash" / "sums"
        for kind in KINDS:
            poll(lambda kind=kind: CursorFile(job, kind, id[:8]).read().ended)
            shown = shown_by(kind, job / "monitor" / kind)
            said = said_by_steps(scene, name, kind)
            if target == "daemon":  # its trainers repeat steps, which take another time than the first ones took
                shown = timeless(shown)
                said = timeless(said)
            assert shown == said
        page = scene.page(name)
        assert page is not None
        assert [(row.kind, row.step, row.ended, row.error) for row in page.trackers] == [
            (kind, 150, True, "") for kind in KINDS
        ]
        poll(lambda: trackers_of(id) == [])


def kill(scene: Scene, target: str, experiment: str) -> int:
    """Kills the daemon, or every tracker; the number of processes that it struck."""
    if target == "daemon":
        os.kill(scene.host.pid, signal.SIGKILL)
        return 1
    living = trackers_of(experiment)
    for process in living:
        process.kill()
    return len(living)
