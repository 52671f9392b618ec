"""The checkpoint that was written last stays, whatever the steps of the others; what trainers left half done goes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from synthetic.log.synthetic_run import spec_of

from rftd.ops.ids import SystemIds
from rftd.storage.files.checkpoints import commit_folder, put_back
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.envelope import Decoded, Head
from rftd.streams.log.topics import CHECKPOINTS, Partition
from rftd.streams.spec.spec import TrainerSpec
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

    def checksum(self) -> str:
        return self.text

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


REMOVED_BY_KILLED_TRAINERS = """
import asyncio, os, signal, sys
from pathlib import Path
from types import SimpleNamespace
import torch
from synthetic.log.synthetic_run import spec_of
from rftd.ops.clock import SystemClock
from rftd.ops.errors import NotFoundError
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.storage.files.checkpoints import files_of, verify
from rftd.streams.folds.run_state import RunState
from rftd.workers.conversion.conversion import found_checkpoints
from rftd.workers.weights.shards import write_manifest, write_part
from rftd.workers.engines.ranks.torch_shards import shards_of
from rftd.workers.training.tidying import discard, tidy

class Lease:
    def __init__(self, epoch):
        self.writer = SimpleNamespace(epoch=epoch)
    async def confirm(self):
        pass

def saved(folder):
    actor = folder / "actor"
    actor.mkdir(parents=True)
    for kind in ("model", "optimizer"):
        tensors = {"weight": torch.arange(24.0).reshape(8, 3)}
        parts = [write_part(actor, kind, shards_of(tensors, rank, 2), rank=rank, ranks=2) for rank in (0, 1)]
        write_manifest(actor, kind, parts)
    (actor / "trainer_state.json").write_text("{}")
    return files_of(folder)

def killed_at(number, checkpoint):
    child = os.fork()
    if child == 0:
        calls = 0
        def count(event, _):
            nonlocal calls
            if event in ("os.rename", "os.remove", "os.rmdir"):
                calls += 1
                if calls == number:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(count)
        asyncio.run(discard(Lease(1), [checkpoint]))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

kills = 0
for number in range(1, 100):
    job = Path(sys.argv[1]) / str(number)
    spec = spec_of("one", 60, str(job))
    checkpoint = job / "global_step_2"
    files = saved(checkpoint)
    ended = killed_at(number, checkpoint)
    try:
        for each in found_checkpoints(job, ()):
            verify(each.folder, files)
            assert len(files_of(each.folder)) == len(files)
    except NotFoundError:
        assert not checkpoint.exists()
    # No event names it any more.
    asyncio.run(tidy(Lease(2), RunState(SystemIds(SystemClock()).new()), spec, logger()))
    if checkpoint.exists():
        verify(checkpoint, files)
        assert number <= 2, "only before the rename"
    else:
        assert not [path for path in job.rglob("*") if path.is_file()], number
    if ended == 0:
        break
    assert ended == -signal.SIGKILL
    kills += 1
print(kills)
"""


@pytest.mark.slow
def test_parts_of_ranks_go_together_whenever_their_trainer_is_killed(tmp_path: Path) -> None:
    """Killed before each rename and removal: the checkpoint is whole under its name, or none; the next one tidies."""
    command = [sys.executable, "-P", "-c", REMOVED_BY_KILLED_TRAINERS, str(tmp_path)]
    paths = os.pathsep.join(each for each in sys.path if each)
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, timeout=240, check=True
    )
    # A rename, seven files, two folders, and the workplace.
    assert int(done.stdout) >= 11
