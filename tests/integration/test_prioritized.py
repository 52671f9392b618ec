"""A priority that is changed while the experiment runs: the group is in the next batch, first of all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.until import until

from rftd.daemon.run.supervisor.inbox import Request
from rftd.daemon.run.supervisor.run import Run
from rftd.ops.errors import ConflictError
from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned, ExperiencePrioritized
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec, TrainerSpec


@pytest.mark.anyio
async def test_a_group_with_a_higher_tag_is_trained_next(
    tmp_path: Path, log: EventLog, clock: Any, ids: Any, fake_world: Any
) -> None:
    spec = fake_world.spec(
        tmp_path,
        total_steps=8,
        policy=PolicySpec(max_staleness_versions=6, max_inflight_batches=6),
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
        trainer=TrainerSpec(engine="fake", engine_args={"step_s": 0.1}),
    )
    run = await fake_world.run(log, spec, clock, ids)
    experiment = run.state.experiment
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.drive())
        tagged, place = await _tagged(run)
        with pytest.raises(ConflictError, match="waits to be trained"):
            await run.command(ExperiencePrioritized(group=UUID(int=7), priority=1.0), Request(ids.new()))
    assert run.state.spine.status is Status.COMPLETED, (run.state.spine.code, run.state.spine.reason)
    home = partition_of(topics.EXPERIMENTS, experiment)
    later = [decode(record).event for record in await log.read(home, place, max_records=10_000)]
    plan = next(event for event in later if isinstance(event, BatchPlanned))
    assert plan.groups[plan.experiences[0].group].group == tagged
    assert len({item.group for item in plan.experiences[:4]}) == 1, "its experiences stay together"
    assert (await fake_world.verified(log)).clean


async def _tagged(run: Run) -> tuple[UUID, int]:
    """The group that got a tag while it waited, and where its event lies; a group may be planned meanwhile."""
    waiting = run.state.replay_buffer.waiting
    while True:
        await until(lambda: len(waiting) >= 8)
        newest = list(waiting.values())[-1].group.group
        try:
            event = ExperiencePrioritized(group=newest, priority=5.0, by="test")
            return newest, (await run.command(event, Request(derive(newest, "tag")))).offset
        except ConflictError:
            continue
