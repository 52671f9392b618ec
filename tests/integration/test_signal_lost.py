"""A run whose prompts are all cut trains no token: it says so after the first batches, and pauses for a person."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from synthetic.servers.kept_spans import KeptSpans
from synthetic.until import until

from rftd.daemon.run.supervisor.orders import Request
from rftd.ops.ids import Ids
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.events.experiment import ExperimentPaused, ExperimentResumed, SignalLost
from rftd.streams.events.step import PROMPTS_CUT_ROWS, EvalCompleted, StepCompleted
from rftd.streams.folds.signal import ALL_PROMPTS_CUT
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.workers.control.hold import SIGNAL_LOST


@pytest.mark.anyio
@pytest.mark.parametrize("log", ["sqlite"], indirect=True)
async def test_a_run_whose_prompts_are_all_cut(
    tmp_path: Path, log: EventLog, clock: Any, ids: Ids, fake_world: Any
) -> None:
    spec = fake_world.spec(tmp_path)
    rft = spec.stages[1]
    cut = msgspec.structs.replace(rft.model, max_prompt_tokens=1)
    trainer = msgspec.structs.replace(rft.trainer, max_idle_steps=2)
    stage = msgspec.structs.replace(rft, model=cut, trainer=trainer, eval_on_startup=True, eval_at_end=False)
    spec = msgspec.structs.replace(spec, stages=(spec.stages[0], stage))
    sink = KeptSpans()
    tracer = Tracer(sink, clock=clock, random=Random(1), ratio=0.0)
    run = await fake_world.run(log, spec, clock, ids, tracer=tracer)
    spine = run.state.spine
    async with asyncio.timeout(90), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.drive())
        await until(lambda: spine.status is Status.PAUSED)
        assert spine.cause == SIGNAL_LOST
        assert "every prompt is longer than max_prompt_tokens (1)" in spine.reason
        assert "raise model.max_prompt_tokens" in spine.reason
        waits = {wait.role: wait for wait in run.waits()}
        assert waits["signal"].state == ALL_PROMPTS_CUT
        assert waits["experiment"].state == SIGNAL_LOST
        with tracer.always("POST") as request:
            await run.command(ExperimentResumed(), Request(ids.new()))
        await until(lambda: spine.ended or (spine.status is Status.PAUSED and spine.signal.idle_batches >= 2))
        if not spine.ended:
            await run.command(ExperimentResumed(), Request(ids.new()))
    assert spine.status is Status.COMPLETED
    partition = partition_of(topics.EXPERIMENTS, run.state.experiment)
    records = [decode(record) for record in await log.read(partition, 0, max_records=10_000)]
    events = [each.event for each in records]
    steps = [each for each in events if isinstance(each, StepCompleted) and each.stage == 1]
    assert [each.tokens for each in steps] == [0] * 5
    [lost] = [each for each in events if isinstance(each, SignalLost)]
    assert (lost.cause, lost.step) == (ALL_PROMPTS_CUT, steps[0].step)
    # Whatever is sampled: pauses, and what somebody asked for, in the trace of his request.
    [pause, *_] = [span for span in sink.spans if span.name == "pause_experiment"]
    [paused, *_] = [each.head.traceparent for each in records if isinstance(each.event, ExperimentPaused)]
    [resumed, *_] = [each.head.traceparent for each in records if isinstance(each.event, ExperimentResumed)]
    assert (paused, pause.attributes["rftd.cause"]) == (pause.context.traceparent, SIGNAL_LOST)
    assert resumed == request.context.traceparent
    scored = [each for each in events if isinstance(each, EvalCompleted)]
    assert [each.metrics[PROMPTS_CUT_ROWS] for each in scored] == [12.0] * len(scored)
    assert (await fake_world.verified(log)).clean
