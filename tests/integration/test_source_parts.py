"""A run whose reward and workflow come from Python files: scored by them, replayed, forked without the files."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic.daemon.fork_desk import ForkDesk
from synthetic.log.log_reading import read_decoded

from rftd.ops.errors import ArchiveError
from rftd.storage.portable.experiment import export_experiment, import_experiment
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.memory import MemoryLog

REWARD = """
def by_length(response, truth, weight, task):
    return {"right": float(response.strip() == truth), "short": -weight * len(response), "row": 0.0 * task.row}
"""
WORKFLOW = """
from rftd.workers.workflows.simple import SimpleWorkflow

class Answered(SimpleWorkflow):
    pass
"""
FREE = ("deterministic=false", "synchronizer={sync_style: fully_async, sync_interval: 1}", "policy={kind: hard_bound}")
NAMED = (
    "buffer.explorer_input.taskset.default_reward_fn_type=./mine.py:by_length",
    "buffer.explorer_input.taskset.reward_fn_args={weight: 0.125}",
    "buffer.explorer_input.taskset.default_workflow_type=./flow.py:Answered",
)


@pytest.fixture
def desk(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> ForkDesk:
    return ForkDesk(tmp_path, log, fake_world.executor(log, clock, ids), clock, ids)


@pytest.mark.anyio
async def test_a_run_is_scored_by_the_text_that_was_submitted(desk: ForkDesk, fake_world, clock) -> None:
    (desk.folder / "mine.py").write_text(REWARD)
    (desk.folder / "flow.py").write_text(WORKFLOW)
    async with desk.open() as supervisor:
        experiment = await desk.hand_in(supervisor, *FREE, *NAMED)
        (desk.folder / "mine.py").write_text("raise AssertionError('a changed file is never read')")
        (desk.folder / "flow.py").unlink()
        await desk.completed(experiment)
    experiences = [record.event for record in await read_decoded(desk.log, topics.EXPERIENCES)]
    produced = [event for event in experiences if isinstance(event, ExperienceProduced)]
    assert len(produced) > 16
    for event in produced:
        assert event.metrics["short"] <= 0.0
        assert event.reward == event.metrics["right"] + event.metrics["short"]
    report = await fake_world.verified(desk.log)
    assert report.clean, report.findings
    file = desk.folder / "sums.rftd"
    await export_experiment(desk.log, experiment, file, release="1", clock=clock, checkpoints="none")
    elsewhere = MemoryLog()
    with pytest.raises(ArchiveError, match=r"brings Python code .*: flow\.py, mine\.py"):
        await import_experiment(elsewhere, file, home=desk.folder / "home", clock=clock)
    assert await elsewhere.heads() == {}
    imported = await import_experiment(elsewhere, file, home=desk.folder / "home", clock=clock, allow_code=True)
    assert imported.spec.stages[-1].sources["mine.py"] == REWARD
