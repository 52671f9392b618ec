"""The files of an experiment stay where the log has lost its records: they are all that is left of it."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.run.supervisor.loss_check import LossCheck
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.ops.clock import SystemClock
from rftd.ops.errors import LogLossError
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.storage.files.survivors import LossesFile
from rftd.streams.log import topics
from rftd.streams.log.lost_records import Witness
from rftd.streams.log.topics import partition_of
from rftd.streams.memory import MemoryLog
from rftd.workers.hosts.local import LocalExecutor

pytestmark = pytest.mark.anyio


class Scene:
    """An experiment that has ended, and its last checkpoint's folder."""

    def __init__(self, folder: Path) -> None:
        self.recorder = Recorder()
        self.run = SyntheticRun(self.recorder, name="done", job_dir=str(folder / "done")).write()
        self.last = folder / "done" / f"global_step_{self.run.version}"
        self.last.mkdir(parents=True)
        (self.last / "model.safetensors").write_bytes(b"weights")
        for path in (self.last / "model.safetensors", self.last):
            os.utime(path, ns=(1, 1))
        self.losses = LossesFile(folder / "losses.json")

    async def supervisor(self, *, lost: int) -> Supervisor:
        """The supervisor of a log that has lost so many of the newest events of checkpoints."""
        whole, log, clock = MemoryLog(), MemoryLog(), SystemClock()
        await whole.append(self.recorder.drafts)
        place = partition_of(topics.CHECKPOINTS, self.run.id)
        own = [draft.id for draft in self.recorder.drafts if draft.partition == place]
        gone = set(own[len(own) - lost :])
        await log.append([draft for draft in self.recorder.drafts if draft.id not in gone])
        loss_check = LossCheck(log, self.losses, logger=logger())
        await loss_check.note([Witness("somebody", await whole.heads())])
        return Supervisor(
            log,
            LocalExecutor("unix:nowhere"),
            owner=UUID(int=1),
            clock=clock,
            ids=SystemIds(clock),
            logger=logger(),
            loss_check=loss_check,
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_what_lost_its_event_is_no_garbage_until_a_person_accepts_that(scene: Scene) -> None:
    supervisor = await scene.supervisor(lost=1)
    await supervisor.collect(every=True)
    assert scene.last.is_dir(), "the last checkpoint was removed, for the log has lost what named it"
    with pytest.raises(LogLossError, match="gone"):
        await supervisor.archive(scene.run.id, to="", request_id=UUID(int=2))
    with pytest.raises(LogLossError, match="gone"):
        await supervisor.remove(scene.run.id, reason="", archive=True, request_id=UUID(int=3))
    assert scene.last.is_dir()
    await supervisor.accept_losses(["done"], by="a person")
    await supervisor.collect(every=True)
    assert not scene.last.exists()


async def test_what_no_event_ever_named_is_garbage(scene: Scene) -> None:
    left = scene.last.with_name("global_step_77")
    scene.last.rename(left)
    supervisor = await scene.supervisor(lost=0)
    await supervisor.collect(every=True)
    assert not left.exists()
