"""Workers that nobody ordered: they join what is under way, stand by, take over, and go on with the next experiment."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene
from synthetic.until import PATIENCE_S, poll

from rftd.streams.events.worker import WorkerLost, WorkerStarted

OWN_NAMES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""As in a container: pids of its own, and the host's name."""


@contextmanager
def worker(scene: Scene, name: str, role: str, *, within: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """`rftd worker ROLE` on the scene's log, ended with the block."""
    where = () if "RFTD_KAFKA" in scene.environ else ("--log", f"unix:{scene.data.socket}")
    process = scene.spawn(name, "worker", role, *where, within=within)
    try:
        yield process
    finally:
        if within:  # it passes no SIGTERM on, but its end ends the worker
            process.kill()
        process.terminate()
        try:
            process.wait(timeout=240)
        finally:
            process.kill()


def until_said(path: Path, text: str, timeout_s: float = PATIENCE_S) -> None:
    poll(lambda: path.exists() and text in path.read_text(), timeout_s, told=lambda: f"{path} does not say {text}")


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


def _has_namespaces() -> bool:
    try:
        return subprocess.run([*OWN_NAMES, "true"], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.e2e
@pytest.mark.skipif(not _has_namespaces(), reason="making a PID namespace needs Linux, unshare and the right to")
def test_workers_in_a_pid_namespace_of_their_own_are_not_lost(tmp_path: Path) -> None:
    """Each is process 1 of its own; under the host's name that is somebody else, and so they were declared lost."""
    scene = Scene(tmp_path, "--workers", "external")
    with scene.host, ExitStack() as stack:
        name = scene.submit(EXPERIMENT, *SHORT)
        for role in ("trainer", "explorer"):
            stack.enter_context(worker(scene, role, role, within=OWN_NAMES))
        assert scene.until_ended(name).experiment.summary.state == "completed"
    started = scene.events(WorkerStarted)
    assert len(started) == 2
    assert {each.pid for each in started} == {1}
    assert len({each.pid_namespace for each in started}) == 2
    assert len({each.boot_id for each in started}) == 1
    assert scene.events(WorkerLost) == []
    assert scene.verified().clean
