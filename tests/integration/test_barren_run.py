"""A run whose groups have one good rollout each: it makes no step, and says so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from synthetic.daemon.third_party import install

from rftd.ops.errors import RolloutError
from rftd.streams.folds.spine import Status
from rftd.streams.log.log import EventLog

LONELY = '''
from collections import Counter
from rftd.workers.workflows.simple import SimpleWorkflow
class Lonely(SimpleWorkflow):
    """Succeeds once for each row."""
    def __init__(self):
        self.seen = set()
    async def run(self, task, model, reward):
        if task.where in self.seen:
            raise ValueError("only one of a group succeeds")
        self.seen.add(task.where)
        return await super().run(task, model, reward)
'''


@pytest.fixture
def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path, "lonely_workflow", LONELY, {"rftd.workflows": {"lonely": "lonely_workflow:Lonely"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("lonely_workflow", None)


@pytest.mark.anyio
async def test_it_fails_with_the_counts_and_the_fix(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, lonely: None
) -> None:
    spec = fake_world.spec(tmp_path)
    stage = spec.stages[1]
    stage = msgspec.structs.replace(stage, taskset=msgspec.structs.replace(stage.taskset, workflow="lonely"))
    spec = msgspec.structs.replace(spec, stages=(spec.stages[0], stage))
    run = await fake_world.run(log, spec, clock, ids)
    async with asyncio.timeout(90):
        await run.drive()
    spine = run.state.spine
    assert (spine.status, spine.code) == (Status.FAILED, RolloutError.code)
    assert spine.reason.startswith("fewer than 2 of 4 rollouts succeeded in each of 4"), spine.reason
    assert "fix: see why rollouts fail" in spine.reason
    assert "only one of a group succeeds" in spine.reason
    assert run.state.replay_buffer.books.retired["group_incomplete"] >= 36
    assert (await fake_world.verified(log)).clean
