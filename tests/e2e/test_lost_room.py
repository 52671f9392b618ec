"""The folder of an experiment fills up, or becomes read-only, at its last checkpoint: it pauses, says why, and goes on.

The folder is a small file system of its own, which only root can mount.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene, stopped_by
from synthetic.faults.small_volume import SmallVolume, small_volume
from synthetic.until import poll

pytestmark = pytest.mark.e2e
STEPS = 6


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[SmallVolume]:
    """The folder of checkpoints."""
    with small_volume(tmp_path / "checkpoints", 8 << 20) as made:
        yield made


class Loss(NamedTuple):
    """A way to lose the room for a checkpoint, and what the daemon makes of it."""

    lose: Callable[[SmallVolume], None]
    give_back: Callable[[SmallVolume], None]
    reserve: str
    state: str
    cause: str


LOSSES = {
    "full": Loss(SmallVolume.fill, SmallVolume.empty, "256KiB", "paused", "0 B are free on the volume of"),
    "full, and nothing reserved": Loss(SmallVolume.fill, SmallVolume.empty, "0", "running", "No space left on device"),
    "read-only": Loss(SmallVolume.make_read_only, SmallVolume.make_writable, "0", "paused", "Read-only file system"),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_last_checkpoint_without_room_is_written_later(tmp_path: Path, volume: SmallVolume, loss: Loss) -> None:
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
