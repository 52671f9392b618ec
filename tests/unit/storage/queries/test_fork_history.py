"""A fork's steps, curve, evaluations and batches begin with its ancestors', and say so; on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun, spec_of

from rftd.ops.clock import ManualClock
from rftd.storage.projector.projector import Projector
from rftd.storage.queries import steps
from rftd.storage.queries.curve import RewardCurves
from rftd.storage.queries.shares import ENDLESS, shares_of
from rftd.streams.events import experiment
from rftd.streams.events.step import StepCompleted
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def parent(recorder: Recorder) -> SyntheticRun:
    """Steps 1 to 5, of which 3 to 5 have rewards and evaluations."""
    return SyntheticRun(recorder, faults=False).write()


@pytest.fixture
def child(recorder: Recorder, parent: SyntheticRun) -> UUID:
    """Shares steps 1 to 4, and makes 5 and 6."""
    return fork(recorder, parent.id, "child", at_step=4, own=(5, 6))


@pytest.fixture
def grandchild(recorder: Recorder, child: UUID) -> UUID:
    """Shares step 5 with the child, and makes 6."""
    return fork(recorder, child, "grandchild", at_step=5, own=(6,))


@pytest.fixture
async def connection(
    recorder: Recorder, child: UUID, grandchild: UUID, either: AsyncEngine
) -> AsyncIterator[AsyncConnection]:
    log = MemoryLog()
    await log.append(recorder.drafts)
    projector = Projector(log, either, clock=ManualClock())
    await projector.catch_up()
    await projector.close()
    async with either.connect() as connection:
        yield connection


def fork(recorder: Recorder, parent: UUID, name: str, *, at_step: int, own: tuple[int, ...]) -> UUID:
    id = recorder.ids.new()
    recorder.write(experiment.ExperimentSubmitted(spec=spec_of(name, 4)), id)
    forked = experiment.ExperimentForked(
        parent=parent, at_step=at_step, checksum="c", stage=1, first_versions=(0, 2), decided_at_ns=0
    )
    recorder.write(forked, id)
    for step in own:
        done = StepCompleted(
            batch=recorder.ids.new(), step=step, stage=1, generation=0, checksum=name, items=8, tokens=8, duration_s=1.0
        )
        recorder.write(done, id, role="trainer")
    return id


async def test_steps_of_the_whole_chain(
    connection: AsyncConnection, parent: SyntheticRun, child: UUID, grandchild: UUID
) -> None:
    rows = await steps.list_steps(connection, grandchild)
    assert [(row.step, row.inherited) for row in rows] == [(step, step < 6) for step in range(1, 7)]
    assert [row.checksum for row in rows[3:]] == ["c4.0", "child", "grandchild"]
    part = await steps.list_steps(connection, grandchild, first_step=3, last_step=5, limit=2)
    assert [row.step for row in part] == [3, 4]
    assert [(row.step, row.inherited) for row in await steps.list_steps(connection, parent.id)] == [
        (step, False) for step in range(1, 6)
    ]
    assert [(share.experiment, share.first, share.last) for share in await shares_of(connection, grandchild)] == [
        (parent.id, 0, 4),
        (child, 5, 5),
        (grandchild, 6, ENDLESS),
    ]


async def test_curve_and_evaluations_end_where_the_fork_left(connection: AsyncConnection, grandchild: UUID) -> None:
    curves = RewardCurves()
    for _ in ("read", "remembered"):
        curve = await curves.of(connection, grandchild)
        assert [(point.step, point.inherited) for point in curve] == [(3, True), (4, True)]
    evals = await steps.list_evals(connection, grandchild)
    for newest in range(len(evals) + 2):
        assert await steps.list_evals(connection, grandchild, newest=newest) == evals[max(0, len(evals) - newest) :]
    assert [(row.version, row.inherited) for row in evals] == [(3, True), (4, True)]
