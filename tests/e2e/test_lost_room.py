"""The folder of an experiment fills up, or becomes read-only, at its last checkpoint: it pauses, says why, and goes on.

The folder is a small file system of its own, which only root can mount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene, stopped_by
from synthetic.until import poll

pytestmark = pytest.mark.e2e
STEPS = 6


def mount(*arguments: str) -> None:
    """Mounts. The test is skipped where nobody may."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """The folder of checkpoints, a file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder))
    yield folder
    while os.path.ismount(folder):
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leaves no byte free."""
    with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def empty(folder: Path) -> None:
    (folder / "ballast").unlink()


def make_read_only(folder: Path) -> None:
    """Whoever opens a file below the folder from now on may only read it."""
    mount("--bind", str(folder), str(folder))
    mount("-o", "remount,ro,bind", str(folder))


def make_writable(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], check=True)


class Loss(NamedTuple):
    """A way to lose the room for a checkpoint, and what the daemon makes of it."""

    lose: Callable[[Path], None]
    give_back: Callable[[Path], None]
    reserve: str
    state: str
    cause: str


LOSSES = {
    "full": Loss(fill, empty, "256KiB", "paused", "0 B are free on the volume of"),
    "full, and nothing reserved": Loss(fill, empty, "0", "running", "No space left on device"),
    "read-only": Loss(make_read_only, make_writable, "0", "paused", "Read-only file system"),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_last_checkpoint_without_room_is_written_later(tmp_path: Path, volume: Path, loss: Loss) -> None:
    """The trainer is stopped after its last step, before it saves, until the room is lost."""
    once = tmp_path / "once"
    armed = f"trainer.after_step_append=stop@{STEPS}!{once}"
    scene = Scene(tmp_path, environ={"RFTD_FAULTS": armed, "RFTD_DISK_RESERVE": loss.reserve})
    with scene.host:
        name = scene.submit(EXPERIMENT, *SHORT, f"buffer.total_steps={STEPS}", "trainer.save_interval=1000")
        poll(lambda: stopped_by(once))
        loss.lose(volume)
        for process in stopped_by(once):
            process.resume()
        poll(lambda: loss.cause in words(scene.rftd("why", name).out), told=lambda: scene.rftd("why", name))
        page = scene.until_state(name, loss.state)
        assert loss.state == "running" or loss.cause in (page.experiment.summary.reason or ""), page
        loss.give_back(volume)
        summary = scene.until_ended(name).experiment.summary
        assert (summary.state, summary.step) == ("completed", STEPS), summary
        report = scene.verified()
        assert report.clean, report.findings


def words(text: str) -> str:
    """A text whose lines may be folded anywhere, as one line."""
    return " ".join(text.split())
