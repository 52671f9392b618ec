"""One folder, one daemon, one log: a second daemon, a flipped byte, commands, the queue, and tables made anew."""

from __future__ import annotations

import json
import time

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

from rftd.ops.errors import ConflictError, LogCorruptError, LogLossError

QUICK = [word for override in SHORT for word in ("-s", override)]


@pytest.mark.e2e
def test_a_second_daemon_is_refused_and_the_first_undisturbed(scene: Scene) -> None:
    second = scene.rftd("serve", "--port", "0")
    assert second.status == 5, second
    assert ConflictError.code in second.err
    name = scene.submit(EXPERIMENT, *SHORT)
    assert scene.until_ended(name).experiment.summary.state == "completed"


@pytest.mark.e2e
def test_a_flipped_byte_below_a_remembered_head_is_refused(embedded_scene: Scene) -> None:
    name = embedded_scene.submit(EXPERIMENT, *SHORT)
    embedded_scene.until_ended(name)
    embedded_scene.host.stop()
    path = embedded_scene.data.log / "log.db"
    content = bytearray(path.read_bytes())
    place = content.rfind(b"step.completed")  # in the envelope, which is never compressed
    assert place > 0
    content[place] ^= 0x01
    path.write_bytes(content)
    refused = embedded_scene.rftd("serve", "--port", "0")
    assert refused.status == 70, refused
    assert LogCorruptError.code in refused.err or LogLossError.code in refused.err
    assert "@" in refused.err, "the position is named"
    assert embedded_scene.rftd("verify").status != 0
    content[place] ^= 0x01
    path.write_bytes(content)
    assert embedded_scene.rftd("verify").status == 0


@pytest.mark.e2e
def test_pause_resume_and_cancel(scene: Scene) -> None:
    name = scene.submit()
    scene.until_step(name, 8)
    assert scene.rftd("pause", name, "--wait").status == 0
    paused = scene.page(name)
    assert paused is not None
    assert paused.experiment.summary.state == "paused"
    assert scene.rftd("pause", name).status == 0, "asking twice is no error"
    time.sleep(0.5)  # what was under way ends; nothing new begins
    still = scene.page(name)
    time.sleep(0.5)
    later = scene.page(name)
    assert still is not None
    assert later is not None
    assert later.experiment.summary.step == still.experiment.summary.step
    assert scene.rftd("resume", name, "--wait").status == 0
    scene.until_step(name, still.experiment.summary.step + 3)
    assert scene.rftd("cancel", name, "--wait").status == 0
    ended = scene.until_ended(name)
    assert ended.experiment.summary.state == "cancelled"
    assert scene.rftd("pause", name).status == 5
    assert scene.verified().clean


@pytest.mark.e2e
def test_experiments_queue_and_wait_tells_how_they_ended(scene: Scene) -> None:
    first = scene.submit()
    path = scene.write()
    second = scene.rftd("submit", str(path), *QUICK, "-s", "name=second", "--json")
    assert second.status == 0, second
    waiting = scene.until_state("second", "queued")
    assert waiting.experiment.summary.state == "queued"
    assert scene.until_ended(first).experiment.summary.state == "completed"
    assert scene.until_ended("second").experiment.summary.state == "completed"
    third = scene.rftd("submit", str(path), *QUICK, "-s", "name=third", "--wait")
    assert third.status == 0, third
    failing = ["-s", "name=fourth", "-s", "trainer.engine_args={nan_at_step: 2}", "-s", "trainer.max_nonfinite_steps=1"]
    fourth = scene.rftd("submit", str(path), *QUICK, *failing, "--wait")
    assert fourth.status == 1, fourth
    assert "RFTD-WRK-005" in fourth.out + fourth.err
    report = scene.rftd("verify", "--json")
    assert report.status == 0
    assert len(json.loads(report.out)["experiments"]) == 4


@pytest.mark.e2e
def test_tables_made_anew_equal_the_live_ones(scene: Scene) -> None:
    name = scene.submit(EXPERIMENT, *SHORT)
    scene.until_ended(name)
    scene.host.stop()
    rebuilt = scene.rftd("rebuild", "--verify")
    assert rebuilt.status == 0, rebuilt
