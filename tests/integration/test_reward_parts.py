"""The named parts of a reward are figures of each training step and of each evaluation."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rftd.streams.events.registry import Event
from rftd.streams.events.step import EvalCompleted, StepCompleted
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import TOPICS, Partition
from rftd.streams.spec.spec import RolloutSpec

PARTS = ("reward/accuracy/mean", "reward/format_score/mean")


async def spine_events(log: EventLog) -> list[Event]:
    events: list[Event] = []
    for number in range(TOPICS[topics.EXPERIMENTS].partitions):
        records = await log.read(Partition(topics.EXPERIMENTS, number), 0, max_records=10_000)
        events += [decode(record).event for record in records]
    return events


@pytest.mark.anyio
async def test_parts_that_add_up_to_the_reward_have_means_that_do(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    spec = fake_world.spec(
        tmp_path,
        rollout=RolloutSpec(engine="fake", concurrency=8, max_timeout_s=20.0, engine_args={"skill": 0.5, "gain": 0.0}),
    )
    *before, rft = spec.stages
    taskset, (held_out,) = [rft.taskset, rft.evals]
    rft = msgspec.structs.replace(
        rft,
        taskset=msgspec.structs.replace(taskset, reward="math_reward"),
        evals=(msgspec.structs.replace(held_out, reward="math_reward"),),
    )
    state = await fake_world.completed(log, msgspec.structs.replace(spec, stages=(*before, rft)), clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    events = await spine_events(log)
    evaluations = [event for event in events if isinstance(event, EvalCompleted)]
    steps = [event for event in events if isinstance(event, StepCompleted) and event.stage == 1]
    assert (len(evaluations), len(steps)) == (2, 5)
    for evaluation in evaluations:
        assert sum(evaluation.metrics[part] for part in PARTS) == pytest.approx(evaluation.score, abs=1e-6)
    for step in steps:
        assert sum(step.metrics[part] for part in PARTS) == pytest.approx(step.metrics["critic/rewards/mean"], abs=1e-6)
    assert len({step.metrics[PARTS[0]] for step in steps}) > 1, "some batches have more right answers than others"
    report = await fake_world.verified(log)
    assert report.clean, report.findings
