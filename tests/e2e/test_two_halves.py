"""Two daemons on one Kafka log: one explores and one trains, each with the half of the experiment that it was given."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene

from rftd.daemon.stack.kafka import KafkaBroker

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.servers]

LONG, STEPS = "buffer.total_steps=200", 205


@pytest.fixture
def halves(tmp_path: Path, kafka_broker: KafkaBroker, kafka_prefix: str) -> Iterator[tuple[Scene, Scene]]:
    """The daemon that explores, and the one that trains."""
    kafka = {"RFTD_KAFKA": f"kafka://{kafka_broker.bootstrap}/?prefix={kafka_prefix}"}
    scenes = []
    with ExitStack() as stack:
        for role in ("explorer", "trainer"):
            (tmp_path / role).mkdir()
            scenes.append(Scene(tmp_path / role, "--roles", role, environ=kafka))
            stack.enter_context(scenes[-1].host)
        yield scenes[0], scenes[1]


def test_one_explores_and_one_trains_and_each_may_die(halves: tuple[Scene, Scene]) -> None:
    explores, trains = halves
    name = explores.submit(EXPERIMENT, LONG, "mode=explore")
    assert trains.submit(EXPERIMENT, LONG, "mode=train", cwd=explores.folder) == name
    assert explores.until_state(name, "running").experiment.summary.state == "running"
    trains.until_step(name, 10)
    for scene in halves:
        os.kill(scene.host.pid, signal.SIGKILL)
        scene.until_step(name, 15)
    assert explores.kill("explorer", name)
    refused = explores.rftd("cancel", name)
    assert refused.status == 5, refused
    assert "--roles trainer" in refused.err, refused
    for scene in halves:
        page = scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary
        assert page.experiment.books.balance == 0
    logs = [(scene.folder / "daemon.log").read_text() for scene in halves]
    assert "role=explorer" in logs[0], logs[0]
    assert "role=trainer" not in logs[0], logs[0]
    assert "role=trainer" in logs[1], logs[1]
    assert "role=explorer" not in logs[1], logs[1]
    assert all("worker.adopted" in log and "Traceback" not in log for log in logs)
    report = trains.verified()
    assert report.clean, report.findings
    assert report.experiments[0].steps == STEPS
