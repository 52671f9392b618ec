"""The registry counts the time of an experiment that no daemon drives now as the one that drove it did."""

from __future__ import annotations

import msgspec
import pytest
from synthetic.log.synthetic_run import spec_of
from synthetic.log.tape import Tape

from rftd.daemon.run.registry import Registry
from rftd.streams.events import experiment
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.log import topics
from rftd.streams.log.topics import partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.budgets import Budgets


@pytest.mark.anyio
async def test_hours_end_with_the_last_record_of_a_daemon_that_died() -> None:
    tape = Tape()
    id = tape.ids.new()
    spine = partition_of(topics.EXPERIMENTS, id)
    spec = msgspec.structs.replace(spec_of("small", 1), limits=Budgets(hours=9.0))
    tape.write(experiment.ExperimentSubmitted(spec=spec), id)
    for role in ("controller", "planner"):
        tape.fence(role, id, spine)
    tape.write(experiment.ExperimentAccepted(start=()), id, role="controller")
    tape.write(experiment.ExperimentStarted(), id, role="controller")
    tape.clock.advance(3600.0)
    plan = BatchPlanned(batch=tape.ids.new(), step=1, stage=0, observed=(), decided_at_ns=0)
    tape.write(plan, id, role="planner")
    tape.clock.advance(50 * 3600.0)
    tape.fence("controller", id, spine)
    tape.clock.advance(1800.0)
    tape.write(experiment.ExperimentPaused(reason="lunch"), id, role="controller")
    log = MemoryLog()
    await log.append(tape.drafts)
    registry = Registry(log)
    await registry.catch_up()
    assert round(registry.entries[id].spine.spending.ran_ns / 1e9 / 3600, 2) == 1.5
    await registry.close()
