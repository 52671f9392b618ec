"""`rftd replay` beside a daemon that works: it reads, and nothing else; with files, and on Kafka."""

from __future__ import annotations

import json

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

STEPS = 6


@pytest.mark.e2e
def test_replays_beside_a_running_daemon_disturb_nothing(scene: Scene) -> None:
    first = scene.submit(EXPERIMENT, "name=first", *SHORT)
    assert scene.until_ended(first).experiment.summary.state == "completed"
    assert scene.rftd("fork", first, "--at-step", "3", "--name", "again", "--wait").status == 0
    running = scene.submit(EXPERIMENT, "name=running", *SHORT, "buffer.total_steps=2000")
    scene.until_step(running, 3)
    for name, began, steps in ((first, 0, STEPS), ("again", 3, STEPS - 3)):
        said = scene.rftd("replay", name, "--check", "--json")
        assert said.status == 0, said
        answer = json.loads(said.out)
        assert (answer["from_version"], answer["steps"], answer["equal"]) == (began, steps, steps)
    said = scene.rftd("replay", running, "--check", "--json")
    assert said.status == 0, said
    reached = json.loads(said.out)["steps"]
    assert reached >= 3, "as far as it was when the replay began"
    page = scene.until_step(running, reached + 1)
    assert page.experiment.summary.state == "running"
    assert page.experiment.generations == 1
    assert scene.rftd("cancel", running).status == 0
    assert scene.until_ended(running).experiment.books.balance == 0
    shown = scene.rftd("get", "again").out
    assert "(inherited up to step 3)" in shown
    assert f"{STEPS} of {STEPS}" in shown
    assert scene.host.restarts == 0
    assert scene.verified().clean
