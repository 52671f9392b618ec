"""`mix`: batches of experiences and an expert's rows, through the whole of rftd, and again from its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.taskset import Taskset


@pytest.mark.anyio
async def test_a_mixed_stage_runs_to_its_end(tmp_path: Path, log: EventLog, clock, ids, fake_world) -> None:
    dataset = fake_world.spec(tmp_path).stages[0].dataset
    state = await fake_world.completed(log, fake_world.spec(tmp_path, expert_rows=4, dataset=dataset), clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    home = partition_of(topics.EXPERIMENTS, state.experiment)
    events = [decode(record).event for record in await log.read(home, 0, max_records=10_000)]
    plans = [event for event in events if isinstance(event, BatchPlanned) and event.stage == 1]
    assert [(len(plan.experiences), len(plan.rows)) for plan in plans] == [(12, 4)] * 5
    assert [row.row for plan in plans for row in plan.rows] == list(range(20))
    assert state.replay_buffer.counts()["balance"] == 0
    report = await fake_world.verified(log)
    assert report.clean, report.findings


def recorded_rollouts(path: Path) -> TasksetSpec:
    """A file with five groups of four recorded rollouts."""
    rows = [
        {
            "group": f"g{number // 4}",
            "tokens": [1, 2, 3, 4],
            "prompt_tokens": 2,
            "logprobs": [-1.0, -0.5],
            "reward": number % 2,
        }
        for number in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = TasksetSpec(name="older", path=str(path), schema="experience", rows=len(rows))
    with Taskset.open(spec) as taskset:
        return msgspec.structs.replace(spec, digest=taskset.digest)


@pytest.mark.anyio
async def test_a_stage_with_recorded_rollouts_beside_its_own_runs_to_its_end(
    tmp_path: Path, log: EventLog, clock, ids, fake_world
) -> None:
    dataset = recorded_rollouts(tmp_path / "older.jsonl")
    state = await fake_world.completed(log, fake_world.spec(tmp_path, expert_rows=4, dataset=dataset), clock, ids)
    assert state.spine.status is Status.COMPLETED, (state.spine.code, state.spine.reason)
    home = partition_of(topics.EXPERIMENTS, state.experiment)
    events = [decode(record).event for record in await log.read(home, 0, max_records=10_000)]
    plans = [event for event in events if isinstance(event, BatchPlanned) and event.stage == 1]
    assert [(len(plan.experiences), len(plan.rows)) for plan in plans] == [(12, 4)] * 5
    steps = [event for event in events if isinstance(event, StepCompleted) and event.step > plans[0].step - 1]
    assert [step.metrics["auxiliary/critic/rewards/max"] for step in steps] == [1.0] * 5
    report = await fake_world.verified(log)
    assert report.clean, report.findings
