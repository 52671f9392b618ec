"""The checkpoint that was written last stays, whatever the steps of the others; what trainers left half done goes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from synthetic.log.synthetic_run import spec_of

from rftd.ops.ids import SystemIds
from rftd.storage.checkpoints import commit_folder, put_back
from rftd.streams.codec import Decoded
from rftd.streams.envelope import Head
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec import TrainerSpec
from rftd.streams.topics import CHECKPOINTS, Partition
from rftd.workers.training.saving import Saver


class Lease:
    """Folds what is appended, as a lease reads it back."""

    def __init__(self, state: RunState, ids: SystemIds) -> None:
        self.writer: Any = SimpleNamespace(draft=lambda event, experiment: event, epoch=1)
        self._state, self._ids = state, ids

    async def confirm(self) -> None:
        """Nobody else is here."""

    async def append(self, events: list[Any]) -> None:
        for event in events:
            head = Head(id=self._ids.new(), type="", version=1, experiment=self._state.experiment, source="", time_ns=0)
            self._state.apply(Decoded(Partition(CHECKPOINTS, 0), 0, head, event))


class Engine:
    """Saves one file that says which weights it holds."""

    text = ""

    def save(self, folder: Path, *, hf: bool) -> None:
        (folder / "weights").write_text(self.text)

    def sha256(self) -> str:
        return "0" * 64


def done(step: int, generation: int, ids: SystemIds) -> StepCompleted:
    return StepCompleted(
        batch=ids.new(), step=step, stage=1, generation=generation, checksum=f"{step}-{generation}", items=1, tokens=1,
        duration_s=0.0, metrics={},
    )  # fmt: skip


@pytest.mark.anyio
async def test_the_last_good_checkpoint_stays(tmp_path: Path, clock, ids) -> None:
    """The last of 30 steps were damaged; the next generation, with other weights, keeps what it wrote itself."""
    spec = spec_of("one", 60, str(tmp_path))
    stages = tuple(
        msgspec.structs.replace(stage, trainer=TrainerSpec(engine="fake", max_checkpoints_to_keep=2))
        for stage in spec.stages
    )
    spec = msgspec.structs.replace(spec, stages=stages)
    state, engine = RunState(ids.new()), Engine()

    class Log:
        async def heads(self) -> dict[Partition, Any]:
            return {}

    with ThreadPoolExecutor(1) as thread:
        saver = Saver(engine, Lease(state, ids), state, spec, log=Log(), thread=thread, clock=clock)  # type: ignore[arg-type]
        for step, generation in ((10, 0), (20, 0), (30, 0), (20, 1), (30, 1)):
            engine.text = f"{step}-{generation}"
            async with asyncio.timeout(10):
                await saver.save(done(step, generation, ids), step)
            newest = list(state.checkpoints.values())[-1]
            assert (newest.step, newest.generation) == (step, generation)
            assert await asyncio.to_thread((Path(newest.path) / "weights").read_text) == engine.text
            assert len({event.path for event in state.checkpoints.values()}) <= 2
    left = await asyncio.to_thread(lambda: sorted(path.name for path in tmp_path.glob("global_step_*")))
    assert left == ["global_step_20", "global_step_30"]
    assert [event.checksum for event in state.checkpoints.values()][-2:] == ["20-1", "30-1"]


def test_a_replacement_that_was_cut_off_is_undone(tmp_path: Path) -> None:
    folder = tmp_path / "global_step_4"
    commit_folder(folder, lambda each: (each / "file").write_text("old") and None)
    folder.rename(tmp_path / ".global_step_4.old")
    put_back(folder)
    assert (folder / "file").read_text() == "old"
    put_back(folder)
    folder.rename(tmp_path / ".global_step_4.old")
    commit_folder(folder, lambda each: (each / "file").write_text("new") and None)
    assert (folder / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_4"]
