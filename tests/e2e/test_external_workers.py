"""Workers that nobody ordered: they join what is under way, stand by, take over, and go on with the next experiment."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from scene import EXPERIMENT, SHORT, Scene


@contextmanager
def worker(scene: Scene, name: str, role: str) -> Iterator[subprocess.Popen[bytes]]:
    """`rftd worker ROLE` on the scene's log, ended with the block."""
    where = () if "RFTD_KAFKA" in scene.environ else ("--log", f"unix:{scene.data.socket}")
    process = scene.spawn(name, "worker", role, *where)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        finally:
            process.kill()


def until_said(path: Path, text: str, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline_s, f"{path} does not say {text}"
        time.sleep(0.05)


@pytest.mark.e2e
def test_they_join_stand_by_and_take_over(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--workers", "external")
    with scene.host, ExitStack() as stack:
        name = scene.submit()
        first = stack.enter_context(worker(scene, "first", "trainer"))
        stack.enter_context(worker(scene, "one", "explorer"))
        scene.until_step(name, 10)
        stack.enter_context(worker(scene, "second", "trainer"))
        stack.enter_context(worker(scene, "two", "explorer"))
        until_said(tmp_path / "second.log", "worker.standby")
        first.kill()
        page = scene.until_ended(name)
        assert page.experiment.summary.state == "completed", page.experiment.summary
        report = scene.verified()
        assert report.clean, report.findings
        assert report.experiments[0].generations == 2
        again = scene.submit(EXPERIMENT.replace("name: sums\ncheckpoint", "name: again\ncheckpoint"), *SHORT)
        assert scene.until_ended(again).experiment.summary.state == "completed"
