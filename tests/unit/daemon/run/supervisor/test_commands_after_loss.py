"""A command to an experiment that nothing runs is not recorded over a loss that only its own checkpoints remember."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

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
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import ExperimentPaused, ExperimentReleased, ExperimentWarned, HeadRef
from rftd.streams.events.registry import Event
from rftd.streams.log.envelope import Draft
from rftd.streams.memory import MemoryLog
from rftd.workers.devices.host import ANY_HOST
from rftd.workers.hosts.local import LocalExecutor

pytestmark = pytest.mark.anyio
LOST_RECORDS = 3
Command = Callable[[Supervisor, Any], Awaitable[object]]


def idle_run(folder: Path, state: Event) -> SyntheticRun:
    """A run that nothing runs, whose checkpoint remembers the end of the spine."""
    run = SyntheticRun(Recorder(), faults=False, job_dir=str(folder / "job"))
    run.begin()
    run.warm_up()
    run.recorder.write(state, run.id)
    for _ in range(LOST_RECORDS):
        run.recorder.write(ExperimentWarned(text="x"), run.id)
    last = [record for record in run.recorder.records if record.partition == run.spine][-1]
    committed = CheckpointCommitted(
        step=run.version,
        generation=0,
        stage=0,
        stage_step=run.version,
        path=str(folder / "global_step_2"),
        files=(),
        size_bytes=0,
        checksum="c",
        sha256="s",
        heads=(HeadRef(*run.spine, last.offset + 1, last.chain),),
    )
    run.recorder.write(committed, run.id, role="trainer")
    return run


async def supervised(run: SyntheticRun, folder: Path, drafts: list[Draft]) -> tuple[Supervisor, MemoryLog]:
    """A supervisor of a new daemon, which drives nothing yet."""
    log = MemoryLog()
    await log.append(drafts)
    clock = SystemClock()
    parts: Any = {"clock": clock, "ids": SystemIds(clock), "logger": logger()}
    executor = LocalExecutor("unix:nowhere", host=lambda: ANY_HOST)
    loss_check = LossCheck(log, LossesFile(folder / "losses.json"), logger=logger())
    return Supervisor(log, executor, owner=run.recorder.ids.new(), loss_check=loss_check, **parts), log


def without_the_end(run: SyntheticRun) -> list[Draft]:
    """The log without the last records of the spine."""
    spine = [draft.id for draft in run.recorder.drafts if draft.partition == run.spine]
    return [draft for draft in run.recorder.drafts if draft.id not in spine[-LOST_RECORDS:]]


COMMANDS: dict[str, Command] = {
    "pause": lambda daemon, run: daemon.pause(run.id, reason="", request_id=run.recorder.ids.new()),
    "resume": lambda daemon, run: daemon.resume(run.id, reason="", request_id=run.recorder.ids.new()),
    "cancel": lambda daemon, run: daemon.cancel(run.id, reason="", request_id=run.recorder.ids.new()),
    "prioritize": lambda daemon, run: daemon.prioritize(
        run.id, priority=2, reason="", request_id=run.recorder.ids.new()
    ),
    "remove": lambda daemon, run: daemon.remove(run.id, reason="", archive=False, request_id=run.recorder.ids.new()),
}


@pytest.mark.parametrize("state", [ExperimentPaused(), ExperimentReleased()], ids=["paused", "queued"])
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_is_refused_and_the_loss_is_written_down(tmp_path: Path, command: str, state: Event) -> None:
    run = idle_run(tmp_path, state)
    daemon, log = await supervised(run, tmp_path, without_the_end(run))
    heads = await log.heads()
    with pytest.raises(LogLossError, match="the checkpoint of step 2"):
        await COMMANDS[command](daemon, run)
    assert await log.heads() == heads, "nothing was appended over what is lost"
    assert [loss.head.by for loss in LossesFile(tmp_path / "losses.json").read()]


async def test_a_command_to_a_run_whose_log_is_whole_is_recorded(tmp_path: Path) -> None:
    run = idle_run(tmp_path, ExperimentPaused())
    daemon, log = await supervised(run, tmp_path, run.recorder.drafts)
    heads = await log.heads()
    await COMMANDS["cancel"](daemon, run)
    assert (await log.heads())[run.spine].next_offset == heads[run.spine].next_offset + 1
