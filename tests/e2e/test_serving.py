"""An experiment that serves: it answers strangers, and trains on what they say of its answers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from synthetic.daemon.scene import Scene
from synthetic.daemon.served_chat import FAKES, ServedChat
from synthetic.daemon.torch_world import torch_files
from synthetic.docs.pages import block_named
from synthetic.until import poll

from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.step import StepCompleted

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
TORCH = (
    "model.model_path=./model",
    "model.max_model_len=96",
    "model.max_response_tokens=8",
    "explorer.proxy_port=0",
    "explorer.runner_per_model=4",
    "explorer.rollout_model.engine_type=torch",
    "trainer={trainer_type: torch, save_interval: 1, max_idle_steps: 0}",
    "algorithm.optimizer.lr=0.01",
    "buffer.batch_size=2",
)
"""Overrides that put the page's example on the torch engines and a tiny model."""
QUESTIONS = {f"{number}+1=": str(number + 1) for number in range(5)}


def test_the_example_of_the_page_is_trained_and_the_collected_one_is_cancelled(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--slots", "2")
    program = tmp_path / "teach.py"
    program.write_text(block_named("teach.py").text)
    teach = runpy.run_path(str(program))["teach"]
    text = block_named("served.yaml").text
    with scene.host:
        name = scene.submit(text, *FAKES, "buffer.total_steps=1")
        kept = scene.submit(text, *FAKES, "name=kept", "explorer.collect_only=true", "buffer.total_steps=null")
        folders = tmp_path / "checkpoints" / "assistants"
        chat = ServedChat(folders / name, scene.host.tend)
        chat.until_up()
        assert teach(chat.base_url, QUESTIONS) == {"status": "success", "committed": 10, "groups": 5, "waiting": 0}
        ended = scene.until_ended(name)
        assert ended.experiment.summary.state == "completed"
        assert ended.experiment.books.balance == 0
        other = ServedChat(folders / kept, scene.host.tend)
        other.until_up()
        other.judge(other.ask("2+2="), 0.5, task_id="a")
        assert other.insist("POST", "/commit")["waiting"] == 1
        other.judge(other.ask("2+2="), 0.25, task_id="a")
        assert other.insist("POST", "/commit")["groups"] == 1
        poll(lambda: (page := scene.page(kept)) is not None and page.experiment.books.produced == 2)
        assert scene.rftd("cancel", kept).status == 0
        assert scene.until_ended(kept).experiment.summary.state == "cancelled"
        assert (folders / kept / "serving" / "history.db").exists()
        assert scene.rftd("rm", kept, "--yes").status == 0
        assert not (folders / kept).exists(), "what strangers said goes with the experiment"
    report = scene.verified()
    assert report.clean, report.findings
    assert sorted(each.steps for each in report.experiments) == [0, 1]
    rewards = [event.reward for event in scene.events(ExperienceProduced)]
    assert {0.25, 0.5} <= set(rewards)


def test_what_strangers_say_changes_the_weights_that_answer_them(tmp_path: Path) -> None:
    """The torch engines answer and learn; the daemon dies between a commit and the step that it leads to."""
    scene = Scene(tmp_path)
    torch_files(tmp_path)
    steps = 3
    with scene.host:
        name = scene.submit(block_named("served.yaml").text, *TORCH, f"buffer.total_steps={steps}")
        chat = ServedChat(tmp_path / "checkpoints" / "assistants" / name, scene.host.tend)
        chat.until_up()
        for step in range(steps):
            chat.until_version(step)
            for number in range(4):
                # One of two is better than the other: without a difference there is nothing to learn.
                assert chat.judge(chat.ask("1+1="), float(number % 2), task_id=f"{step}.{number // 2}")
            assert chat.insist("POST", "/commit")["groups"] == 2
            if step == 1:
                assert scene.kill("daemon", name)
        assert scene.until_ended(name).experiment.summary.state == "completed"
    report = scene.verified()
    assert report.clean, report.findings
    completed = {event.step: event.checksum for event in scene.events(StepCompleted)}
    assert len(set(completed.values())) == steps
    drawn = [{span.version for span in event.spans} for event in scene.events(ExperienceProduced)]
    assert sorted(version for versions in drawn for version in versions) == [*[0] * 4, *[1] * 4, *[2] * 4]
