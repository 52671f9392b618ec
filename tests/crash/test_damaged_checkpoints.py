"""Checkpoints that were damaged or exchanged: the trainer's process passes them over by name, and writes them again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from synthetic.daemon.scene import Scene

    from rftd.workers.training.record import TrainingRecord

EVERY_TWO = ("stages=[]", "buffer.total_steps=400", "trainer.save_interval=2", "trainer.max_checkpoints_to_keep=400")


@pytest.mark.e2e
def test_the_checkpoint_before_the_damaged_ones_is_taken_up(embedded_scene: Scene) -> None:
    from synthetic.daemon.scene import EXPERIMENT

    from rftd.storage.files.checkpoints import verify

    name = embedded_scene.submit(EXPERIMENT, *EVERY_TWO, "name=damaged")
    embedded_scene.until_step(name, 9)
    embedded_scene.host.stop()
    before = _record(embedded_scene)
    good, other, flipped, cut = sorted(before.state.checkpoints)[-4:]
    path = {key: Path(event.path) for key, event in before.state.checkpoints.items()}
    shutil.rmtree(path[other])
    shutil.copytree(path[good], path[other])
    state = path[flipped] / "actor" / "state.json"
    state.write_bytes(state.read_bytes()[:-1] + b" ")
    (path[cut] / "actor" / "state.json").unlink()
    embedded_scene.until_step(name, max(before.surviving()) + 3)
    assert embedded_scene.rftd("cancel", name).status == 0
    assert embedded_scene.until_ended(name).experiment.summary.state == "cancelled"
    after = _record(embedded_scene)
    started = after.generations[1]
    assert started.checkpoint == str(path[good])
    assert started.version == good[0]
    for (step, _), says in ((cut, "missing"), (flipped, "other bytes"), (other, "other bytes")):
        assert f"step {step}: checkpoint file state.json" in started.reason
        assert says in started.reason
    assert {step for step, _ in after.state.checkpoints} > {good[0], other[0], flipped[0], cut[0]}
    newest = {event.path: event for _, event in sorted(after.state.checkpoints.items())}
    for folder, event in newest.items():  # what was saved again remembers more of the log than the first time
        verify(Path(folder), event.files)
    assert {step: done.checksum for step, done in before.surviving().items()}.items() <= {
        step: done.checksum for step, done in after.surviving().items()
    }.items()
    report = embedded_scene.verified()
    assert report.clean, report.findings


def _record(scene: Scene) -> TrainingRecord:
    """What the log says of the scene's only experiment."""
    from rftd.daemon.run.registry import find_entry
    from rftd.daemon.serve.log_source import log_to_read
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds
    from rftd.workers.training.record import read_record

    async def read() -> TrainingRecord:
        clock = SystemClock()
        async with log_to_read(scene.data, None, clock=clock, ids=SystemIds(clock)) as log:
            return await read_record(log, (await find_entry(log, "damaged")).id, clock=clock)

    return asyncio.run(read())
