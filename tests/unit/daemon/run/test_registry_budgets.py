"""The registry counts the time of an experiment that no daemon drives now as the one that drove it did."""

from __future__ import annotations

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import spec_of

from rftd.daemon.run.registry import Registry
from rftd.streams.events import experiment
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.log import topics
from rftd.streams.log.topics import partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.sections import Budgets


@pytest.mark.anyio
async def test_hours_end_with_the_last_record_of_a_daemon_that_died() -> None:
    recorder = Recorder()
    id = recorder.ids.new()
    spine = partition_of(topics.EXPERIMENTS, id)
    spec = msgspec.structs.replace(spec_of("small", 1), limits=Budgets(hours=9.0))
    recorder.write(experiment.ExperimentSubmitted(spec=spec), id)
    for role in ("controller", "planner"):
        recorder.fence(role, id, spine)
    recorder.write(experiment.ExperimentAccepted(start=()), id, role="controller")
    recorder.write(experiment.ExperimentStarted(), id, role="controller")
    recorder.clock.advance(3600.0)
    plan = BatchPlanned(batch=recorder.ids.new(), step=1, stage=0, observed=(), decided_at_ns=0)
    recorder.write(plan, id, role="planner")
    recorder.clock.advance(50 * 3600.0)
    recorder.fence("controller", id, spine)
    recorder.clock.advance(1800.0)
    recorder.write(experiment.ExperimentPaused(reason="lunch"), id, role="controller")
    log = MemoryLog()
    await log.append(recorder.drafts)
    registry = Registry(log)
    await registry.catch_up()
    assert round(registry.entries[id].spine.spending.ran_ns / 1e9 / 3600, 2) == 1.5
    await registry.close()
