"""A person's pause gives the processes back, and their memory with them; a resume starts new ones."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.served_chat import FAKES, ServedChat
from synthetic.docs.pages import block_named
from synthetic.until import poll

from rftd.daemon.http.views.budgets import BudgetRow
from rftd.streams.events.experiment import ExperimentReleased
from rftd.streams.events.worker import WorkerStarted

pytestmark = pytest.mark.e2e

SOON = ("--release-after", "500ms")
LIMITS = ("limits.hours=900", "limits.tokens=1000000000", "limits.unseen_days=30")


def living(scene: Scene, name: str) -> list[int]:
    """The processes of the workers that the page shows as live, or showed last."""
    page = scene.page(name)
    assert page is not None
    pids = {worker.pid for worker in page.workers}
    return [event.pid for event in scene.events(WorkerStarted) if event.pid in pids and runs(event)]


def runs(worker: WorkerStarted) -> bool:
    """Whether this worker's process is there, and no later one of its id: the system gives ids anew."""
    try:
        return abs(psutil.Process(worker.pid).create_time() - worker.process_start_s) < 0.02
    except psutil.NoSuchProcess:
        return False


def why(scene: Scene, name: str) -> str:
    """The answer of `rftd why` as JSON, which wraps no line."""
    return scene.rftd("why", name, "-o", "json").out


def budgets(scene: Scene, name: str) -> dict[str, BudgetRow]:
    """The budgets that the page shows, by their fields."""
    page = scene.page(name)
    assert page is not None
    return {budget.field: budget for budget in page.budgets}


def test_the_workers_of_a_pause_are_gone_and_a_new_daemon_starts_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path, *SOON)
    with scene.host:
        name = scene.submit(EXPERIMENT, *LIMITS)
        scene.until_step(name, 6)
        running = budgets(scene, name)
        assert list(running) == ["hours", "tokens", "unseen_days"]
        assert running["hours"].pauses_ns and running["unseen_days"].pauses_ns
        assert len(living(scene, name)) >= 2, "a trainer and an explorer"
        assert scene.rftd("pause", name, "--reason", "the machine is needed").status == 0
        poll(lambda: living(scene, name) == [])
        poll(lambda: bool(scene.events(ExperimentReleased)))
        words = "released: its workers and its slot are released"
        assert words in why(scene, name)
        assert words in scene.rftd("get", name).out.replace("\n", " ")
        with scene.client() as client:
            pause = client.run(name).moment().pause
            assert pause is not None
            assert (pause.stage, pause.words) == ("released", words)
        other = scene.submit(EXPERIMENT, "name=other", "buffer.total_steps=3")
        assert scene.until_ended(other).experiment.summary.state == "completed"
        released = budgets(scene, name)
        assert {field: row.pauses_ns for field, row in released.items()} == dict.fromkeys(released)
        assert all(released[field].spent > running[field].spent > 0 for field in ("hours", "tokens"))
        assert scene.kill("daemon", name)
        scene.until_state(name, "paused")
        again = budgets(scene, name)
        assert (again["hours"], again["tokens"]) == (released["hours"], released["tokens"])
        assert living(scene, name) == []
        assert scene.rftd("archive", name).status == 5
        assert scene.rftd("gc").status == 0
        assert scene.rftd("resume", name).status == 0
        assert scene.until_ended(name).experiment.summary.state == "completed"
        poll(lambda: living(scene, name) == [])  # a worker reads of the end, and leaves
        assert budgets(scene, name)["tokens"].spent > released["tokens"].spent
        assert " of 1,000,000,000 tokens (0%)" in scene.rftd("get", name).out
    report = scene.verified()
    assert report.clean, report.findings


def test_a_served_experiment_says_whether_its_users_are_answered(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--release-after", "1h")
    with scene.host:
        name = scene.submit(block_named("served.yaml").text, *FAKES, "buffer.total_steps=1")
        chat = ServedChat(tmp_path / "checkpoints" / "assistants" / name, scene.host.tend)
        chat.until_up()
        assert scene.rftd("pause", name).status == 0
        assert "its users are still answered, until its workers are released" in why(scene, name)
        with scene.client() as client:
            run = client.run(name)
            poll(lambda: (pause := run.moment().pause) is not None and pause.stage == "quiet")
            moment = run.moment()
            assert moment.pause is not None
            assert moment.pause.memory_bytes > 0
            assert "the weights stay on the devices" in moment.pause.words
            assert "quiet: no work in progress" in moment.sentence
        assert "quiet: no work in progress" in why(scene, name)
        assert chat.ask("1+1=")
        assert scene.rftd("resume", name).status == 0
        assert scene.rftd("cancel", name).status == 0
    scene = Scene(tmp_path, *SOON)
    with scene.host:
        name = scene.submit(block_named("served.yaml").text, *FAKES, "name=other", "buffer.total_steps=1")
        chat = ServedChat(tmp_path / "checkpoints" / "assistants" / name, scene.host.tend)
        chat.until_up()
        assert scene.rftd("pause", name).status == 0
        poll(lambda: "its users get no answer" in why(scene, name))
        assert living(scene, name) == []
        assert scene.rftd("resume", name).status == 0
        chat.until_up()
        assert chat.ask("1+1=")
        assert scene.rftd("cancel", name).status == 0
        scene.until_ended(name)
    report = scene.verified()
    assert report.clean, report.findings
