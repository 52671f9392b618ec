"""A daemon that is killed while a worker opens its engine finds that worker again, and starts no second one."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene, stopped_by
from synthetic.until import poll

from rftd.streams.events.worker import WorkerLost, WorkerStarted


@pytest.mark.e2e
@pytest.mark.slow
def test_a_worker_that_opens_its_engine_outlives_the_daemon(tmp_path: Path) -> None:
    """It stands still before it joins, as one does that reads a large model."""
    once = tmp_path / "stopped"
    scene = Scene(tmp_path, environ={"RFTD_FAULTS": f"worker.before_join=stop@1!{once}"})
    with scene.host:
        name = scene.submit(EXPERIMENT, *SHORT)
        poll(lambda: len(stopped_by(once)) == 1, 60.0)
        [worker] = stopped_by(once)
        scene.kill("daemon", name)
        # `page`: whoever is gone is started again.
        poll(lambda: scene.page(name) is not None and f"pid={worker.pid}" in adopted(scene), 60.0)
        assert worker.is_running()
        worker.send_signal(signal.SIGCONT)
        scene.until_ended(name)
    started = scene.events(WorkerStarted)
    assert Counter(each.role for each in started) == {"trainer": 1, "explorer": 1}
    assert worker.pid in {each.pid for each in started}
    assert scene.events(WorkerLost) == []
    assert scene.verified().clean


def adopted(scene: Scene) -> str:
    """The lines of the daemon's log that tell of workers which it took over."""
    lines = (scene.folder / "daemon.log").read_text().splitlines()
    return "\n".join(line for line in lines if "worker.adopted" in line)
