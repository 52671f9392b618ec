"""Whatever order life events come in, as of two daemons that were asked at once: every reader says the same of it."""

from __future__ import annotations

import asyncio
from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st
from synthetic.log.busy_run import fold
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun, spec_of

from rftd.ops.clock import ManualClock
from rftd.storage.database.engine import open_database
from rftd.storage.projector.projector import Projector
from rftd.storage.queries.experiments import get_summary
from rftd.streams.events import experiment as life
from rftd.streams.events.registry import Event
from rftd.streams.folds.spine import Status
from rftd.streams.memory import MemoryLog
from rftd.streams.verify.checker import verify

COMPLETED: Final = life.ExperimentCompleted()
CANCELLED: Final = life.ExperimentCancelled(reason="asked")
PAUSED: Final = life.ExperimentPaused(reason="asked")
RESUMED: Final = life.ExperimentResumed(reason="asked")
FAILED: Final = life.ExperimentFailed(code="X", reason="no", role="trainer")
AGAIN: Final = life.ExperimentSubmitted(spec=spec_of("small", 3))
RESTORED: Final = life.ExperimentRestored(path="/a")
REMOVED: Final = life.ExperimentRemoved(reason="asked")
EVENTS: Final = (COMPLETED, CANCELLED, PAUSED, RESUMED, FAILED, AGAIN, RESTORED, REMOVED)


@settings(max_examples=6, deadline=None)
@given(events=st.lists(st.sampled_from(EVENTS), max_size=5))
@example(events=[COMPLETED, CANCELLED])
@example(events=[FAILED, PAUSED, RESUMED])
@example(events=[AGAIN])
@example(events=[CANCELLED, REMOVED, RESTORED])
def test_every_reader_says_the_same_of_an_experiment(events: list[Event]) -> None:
    recorder = Recorder()
    run = SyntheticRun(recorder)
    run.begin()
    for event in events:
        role = "controller" if event in (COMPLETED, FAILED) else ""
        recorder.write(event, run.id, role=role)
    spine = fold(run.id, recorder.records).spine

    async def read() -> tuple[str, str, str]:
        log, engine = MemoryLog(), open_database("sqlite:///:memory:")
        await log.append(recorder.drafts)
        projector = Projector(log, engine, clock=ManualClock())
        await projector.catch_up()
        async with engine.connect() as connection:
            summary = await get_summary(connection, run.id)
        await projector.close()
        await engine.dispose()
        [found] = (await verify(log)).experiments
        return summary.state, summary.kept, found.state

    state, kept, verified = asyncio.run(read())
    assert (state, kept) == (spine.status, spine.kept)
    assert verified == ("running" if spine.status is Status.QUEUED else state)
