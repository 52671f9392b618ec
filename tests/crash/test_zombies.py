"""A worker that stands still, is given up and replaced, and then wakes: what it does afterwards has no effect."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from synthetic.until import PATIENCE_S

from rftd.storage.files.checkpoints import verify
from rftd.streams.events.checkpoint import CheckpointCommitted

if TYPE_CHECKING:
    from synthetic.daemon.scene import Scene

STEPS = 150


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("role", ["trainer", "explorer"])
def test_a_worker_that_wakes_after_its_replacement_changes_nothing(tmp_path: Path, role: str) -> None:
    """The daemon did not start these processes, so it does not end them: they may wake, as on another machine."""
    from synthetic.daemon.scene import EXPERIMENT, Scene

    scene = Scene(tmp_path, "--workers", "external", "--worker-lost-after", "3s")
    where = ("--log", f"unix:{scene.data.socket}")
    with scene.host, ExitStack() as stack:
        started = {each: scene.spawn(each, "worker", each, *where) for each in ("trainer", "explorer")}
        name = scene.submit(EXPERIMENT, "stages=[]", f"buffer.total_steps={STEPS}")
        for process in started.values():
            stack.callback(process.kill)
        scene.until_step(name, 10)
        zombie = started[role]
        os.kill(zombie.pid, signal.SIGSTOP)
        stack.callback(scene.spawn("second", "worker", role, *where).kill)
        _until_replaced(scene, name, role, zombie.pid)
        scene.until_step(name, 30)
        os.kill(zombie.pid, signal.SIGCONT)
        page = scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary
        assert page.experiment.books.balance == 0
        report = scene.verified()
        assert report.clean, report.findings
        assert report.experiments[0].steps == STEPS
        assert report.experiments[0].generations == (2 if role == "trainer" else 1)
        if role == "trainer":
            assert "newer owner" in (tmp_path / "trainer.log").read_text()


@pytest.mark.e2e
@pytest.mark.slow
def test_trainer_stopped_before_placing_a_checkpoint_leaves_its_successor_alone(tmp_path: Path) -> None:
    """It looked at its role, and stands still with the exchange as its next act; a folder of that name is there."""
    from synthetic.daemon.scene import EXPERIMENT, Scene
    from synthetic.until import until

    scene = Scene(tmp_path, "--workers", "external", "--worker-lost-after", "3s")
    where = ("--log", f"unix:{scene.data.socket}")
    with scene.host, ExitStack() as stack:

        def trainer(name: str, faults: str = "") -> subprocess.Popen[bytes]:
            process = scene.spawn(name, "worker", "trainer", *where, environ={"RFTD_FAULTS": faults})
            stack.callback(process.kill)
            return process

        stack.callback(scene.spawn("explorer", "worker", "explorer", *where).kill)
        first = trainer("first", "checkpoint.after_files=kill@2")
        name = scene.submit(EXPERIMENT, "stages=[]", "buffer.total_steps=45")
        first.wait(timeout=PATIENCE_S)
        zombie = trainer("zombie", "checkpoint.before_exchange=stop")
        asyncio.run(until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_STOPPED))
        trainer("second")
        scene.until_step(name, 22)
        placed = scene.folder / "checkpoints"
        before = {path: path.read_bytes() for path in placed.rglob("state.json") if not _unfinished(path)}
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.wait(timeout=PATIENCE_S)
        assert {path: path.read_bytes() for path in before} == before
        page = scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary
        report = scene.verified()
        assert report.clean, report.findings
        assert report.experiments[0].generations == 3
    committed = scene.events(CheckpointCommitted)
    assert max(event.generation for event in committed) == 2
    for event in committed:
        verify(Path(event.path), event.files)
    assert list(placed.rglob(".global_step_*")) == []


@pytest.mark.e2e
@pytest.mark.slow
def test_a_daemon_that_stands_still_keeps_its_folder(tmp_path: Path) -> None:
    """So nobody can replace it on the embedded log: a second one is refused, and the first goes on when it wakes."""
    from synthetic.daemon.scene import EXPERIMENT, Scene

    from rftd.ops.errors import ConflictError

    scene = Scene(tmp_path)
    with scene.host:
        name = scene.submit(EXPERIMENT, "stages=[]", "buffer.total_steps=20")
        scene.until_step(name, 5)
        os.kill(scene.host.pid, signal.SIGSTOP)
        try:
            refused = scene.rftd("serve", "--port", "0")
        finally:
            os.kill(scene.host.pid, signal.SIGCONT)
        assert refused.status == ConflictError.exit_status, refused
        assert "Traceback" not in refused.err, refused
        assert scene.until_ended(name).experiment.summary.state == "completed"
        report = scene.verified()
        assert report.clean, report.findings
        assert report.experiments[0].steps == 20, report.findings


def _unfinished(path: Path) -> bool:
    """True below a trainer's own folder (`.trainer-eN`), which it moves into place while this test reads."""
    return any(part.startswith(".trainer-") for part in path.parts)


def _until_replaced(scene: Scene, name: str, role: str, pid: int, timeout_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        page = scene.page(name)
        live = [each.pid for each in page.workers if each.role == role and each.state == "live"] if page else []
        if live and pid not in live:
            return
        assert time.monotonic() < deadline_s, f"{pid} is not replaced: {page}"
        time.sleep(0.05)
