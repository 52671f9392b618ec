"""On a real Kafka and Postgres a pause gives workers and slot back, a fork goes on, and so does the paused run."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.until import poll

from rftd.daemon.stack.kafka import KafkaBroker

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.servers]


def test_a_paused_run_is_released_forked_and_resumed(
    tmp_path: Path, kafka_broker: KafkaBroker, kafka_prefix: str, postgres_url: str
) -> None:
    kafka = f"kafka://{kafka_broker.bootstrap}/?prefix={kafka_prefix}"
    environ = {"RFTD_KAFKA": kafka, "RFTD_POSTGRES": postgres_url}
    scene = Scene(tmp_path, "--release-after", "500ms", environ=environ)
    with scene.host:
        name = scene.submit(EXPERIMENT)
        scene.until_step(name, 6)
        assert scene.rftd("pause", name, "--reason", "the machine is needed").status == 0
        poll(lambda: "its workers and its slot are released" in scene.rftd("why", name, "-o", "json").out)
        step = scene.until_state(name, "paused").experiment.summary.step
        forked = scene.rftd("fork", name, "--at-step", "4", "--name", "forked")
        assert forked.status == 0, forked
        assert scene.until_ended("forked").experiment.summary.state == "completed"
        assert scene.kill("daemon", name)
        page = scene.until_state(name, "paused")
        assert page.experiment.summary.step == step
        assert scene.rftd("resume", name).status == 0
        assert scene.until_ended(name).experiment.summary.state == "completed"
    report = scene.verified()
    assert report.clean, report.findings
