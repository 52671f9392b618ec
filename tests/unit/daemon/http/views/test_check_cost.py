"""A check answers the resolved file and what the stages will cost; nothing is appended."""

from __future__ import annotations

import httpx
import msgspec
import pytest
from synthetic.daemon.experiment_files import config
from synthetic.worlds.desk import BATCH, stage_of

from rftd.daemon.http.views.commands import cost_of
from rftd.streams.spec.engines import MOMENTS, MemoryNeed, WorkerMemory
from rftd.streams.spec.spec import ExperimentSpec, TasksetSpec, TrainerSpec

pytestmark = pytest.mark.anyio


async def test_a_check_answers_the_resolved_file_and_its_cost(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/experiments/check", json={"config": config()})
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert report["resolved"]["name"] == report["name"]
    assert set(report["resolved"]["derived"]["stages"]) == {stage["stage"] for stage in report["cost"]}
    assert all(stage["steps"] >= 0 for stage in report["cost"])
    assert [item["name"] for item in (await client.get("/v1/experiments")).json()["items"]] == ["small"]


def test_the_cost_of_a_stage_counts_rollouts_tokens_rows_and_checkpoints() -> None:
    held_out = TasksetSpec(name="held", path="none", rows=5, repeat_times=2)
    trainer = TrainerSpec(save_interval=2, max_checkpoints_to_keep=3)
    stage = stage_of(evals=(held_out,), eval_interval=5, trainer=trainer)
    memory = WorkerMemory(
        role="trainer",
        stage="rft",
        workers=1,
        device="CPU",
        device_bytes=1 << 30,
        needs=(MemoryNeed(what="weights", size_bytes=77), MemoryNeed(what=MOMENTS, size_bytes=154)),
    )
    spec = ExperimentSpec(project="p", name="n", job_dir="/j", stages=(stage,), config={}, memory=(memory,))
    [cost] = cost_of(spec)
    assert (cost.steps, cost.rollouts, cost.response_tokens) == (10, 10 * BATCH, 10 * BATCH * 48)
    assert (cost.evaluations, cost.evaluation_rows) == (3, 30), "before, in the middle, at the end"
    assert (cost.checkpoints, cost.checkpoints_kept, cost.weights_bytes) == (5, 3, 77)
    assert cost.checkpoints_bytes == 3 * (77 + 154)
    assert cost.log_bytes == 10 * BATCH * (4 * stage.model.max_prompt_tokens + 9 * 48)
    collecting = msgspec.structs.replace(stage, kind="explore", collect_groups=6, total_steps=0)
    [cost] = cost_of(msgspec.structs.replace(spec, stages=(collecting,)))
    assert (cost.rollouts, cost.checkpoints) == (24, 0)
