"""Two engines serve: what was acknowledged is trained once, whoever is killed in between, and the other answers."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from synthetic.daemon.scene import Scene
from synthetic.daemon.served_chat import FAKES, ServedChat, free_port
from synthetic.docs.pages import block_named

from rftd.streams.events.experience import ExperienceProduced

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
RUNS = 16
"""Of two steps with four groups of two."""


def test_kills_between_answer_feedback_and_commit_lose_and_repeat_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.host:
        shared = (f"explorer.proxy_port={free_port()}", "explorer.rollout_model.engine_num=2")
        name = scene.submit(block_named("served.yaml").text, *FAKES, "buffer.total_steps=2", *shared)
        chat = ServedChat(tmp_path / "checkpoints" / "assistants" / name, scene.host.tend)
        chat.until_up()
        for number in range(RUNS):
            id = chat.ask(f"{number}+1=")
            if number == 1:
                assert scene.kill("explorer", name)
            if number == 5:
                scene.kill("daemon", name)
            assert chat.judge(id, float(number), task_id=number // 2)
            if number == 3:
                scene.kill("daemon", name)
            assert not chat.judge(id, float(number), task_id=number // 2)
            if number in (5, 11, RUNS - 1):
                chat.insist("POST", "/commit")
                # At once: the rows are on disk, and perhaps nothing of them is in the log.
                scene.kill("daemon" if number == 11 else "explorer", name)
        page = scene.until_ended(name, timeout_s=240.0)
        assert page.experiment.summary.state == "completed"
        assert page.experiment.books.balance == 0
    report = scene.verified()
    assert report.clean, report.findings
    assert report.experiments[0].steps == 2
    trained: dict[UUID, float] = {event.experience: event.reward for event in scene.events(ExperienceProduced)}
    assert sorted(trained.values()) == [float(number) for number in range(RUNS)]
