"""`--dry-run` of commands to a real daemon with workers: what is said is what the command then does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic.daemon.scene import EXPERIMENT, QUEUE, SHORT, Scene

from rftd.daemon.run.consequence import Consequence

pytestmark = pytest.mark.e2e


def foretold(scene: Scene, *line: str) -> dict[str, Any]:
    """The consequence of a line of the command line."""
    said = scene.rftd(*line, "--dry-run", "--json")
    assert said.status == 0, said
    answer: dict[str, Any] = json.loads(said.out)
    return answer["items"][0] if "items" in answer else answer


def test_commands_to_a_running_experiment_are_rehearsed_without_a_record(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, "stages=[]", "buffer.total_steps=400", "explorer.eval_interval=100000")
    scene.until_step(name, 8)
    said = scene.rftd("pause", name, "--dry-run")
    assert said.status == 0, said
    assert said.out.startswith(f"{name}: ")
    assert "nothing new starts" in said.out
    assert said.out.endswith("nothing was recorded\n")
    pause = foretold(scene, "pause", name)
    assert pause["figures"]["release_after_s"] == 30.0
    assert pause["figures"]["memory_bytes"] > 0
    cancel = foretold(scene, "cancel", name)
    assert cancel["figures"]["checkpoint_step"] % 7 == 0
    assert cancel["figures"]["step"] >= 8
    assert "ends for good at step" in cancel["sentence"]
    fork = foretold(scene, "fork", name, "--at-step", "7")
    assert fork["figures"]["queue_position"] == 1
    assert "behind sums" in fork["sentence"]
    refused = scene.rftd("resume", name, "--dry-run")
    assert refused.status == 5, refused
    with scene.client() as client:
        assert [summary.name for summary in client.runs()] == [name]
        assert client.run(name).summary().state == "running"
        consequence = client.run(name).pause(dry_run=True)
        assert isinstance(consequence, Consequence)
        assert client.run(name).notes().notes == []
    assert scene.rftd("pause", name, "--wait").status == 0
    resumed = foretold(scene, "resume", name)
    assert "continues at once at step" in resumed["sentence"]
    assert scene.rftd("cancel", name, "--wait").status == 0
    report = scene.verified()
    assert report.clean, report.findings


def test_an_archive_and_a_removal_free_what_was_said(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *SHORT)
    job = Path(scene.until_ended(name).experiment.job_dir)
    archive = foretold(scene, "archive", name)
    assert archive["figures"]["freed_bytes"] > 0
    assert list(job.rglob("global_step_*"))
    kept = scene.rftd("rm", name, "--dry-run")
    assert kept.status == 0, kept
    assert job.is_dir()
    assert scene.rftd("archive", name).status == 0
    assert f"freed_bytes={archive['figures']['freed_bytes']} " in (scene.folder / "daemon.log").read_text()
    restore = foretold(scene, "restore", name)
    assert restore["figures"]["archive_bytes"] > 0
    assert foretold(scene, "rm", name)["sentence"].startswith("leaves the archive ")


def test_tasks_and_their_end_are_rehearsed_on_a_queue(embedded_scene: Scene) -> None:
    scene = embedded_scene
    name = scene.submit(EXPERIMENT, *QUEUE)
    scene.until_state(name, "running")
    lines = [json.dumps({"question": f"{number}+1=", "answer": str(number + 1)}) for number in range(4)]
    (scene.folder / "more.jsonl").write_text("\n".join(lines))
    added = foretold(scene, "tasks", "add", name, "more.jsonl")
    assert added["sentence"] == "adds 4 tasks: the queue then has 4"
    refused = scene.rftd("tasks", "end", name, "--dry-run")
    assert refused.status == 5, refused
    assert scene.rftd("tasks", "add", name, "more.jsonl").status == 0
    assert foretold(scene, "tasks", "add", name, "more.jsonl")["figures"] == {"tasks": 8}
    assert foretold(scene, "tasks", "end", name)["figures"]["tasks"] == 4
    assert scene.rftd("tasks", "end", name).status == 0
    assert scene.until_ended(name).experiment.summary.state == "completed"
