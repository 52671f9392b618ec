"""Each stage has the places that it asked for, on an engine with room for all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.spine import Status
from rftd.streams.log.codec import decode
from rftd.streams.log.topics import TRUTH
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.engines.fake.rollout import FakeRolloutEngine
from rftd.workers.generation.engine import Generation, GenerationRequest

PLACES = {7: 1, 8: 4}
"""By the longest response of a stage, which tells its requests apart."""


@pytest.mark.anyio
async def test_a_later_stage_runs_as_many_rollouts_at_once_as_it_asked_for(
    tmp_path: Path, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: Counter[int] = Counter()
    peak: Counter[int] = Counter()
    together = asyncio.Event()
    plain = FakeRolloutEngine.generate

    async def watched(self: FakeRolloutEngine, request: GenerationRequest) -> Generation:
        stage = request.sampling.max_tokens
        running[stage] += 1
        peak[stage] = max(peak[stage], running[stage])
        if running[stage] == 4:
            together.set()
        try:
            if stage == 8 and request.sampling.temperature:
                await together.wait()  # for ever, if the stage never has its four places
            return await plain(self, request)
        finally:
            running[stage] -= 1

    monkeypatch.setattr(FakeRolloutEngine, "generate", watched)
    log = await SqliteLog.open(tmp_path / "log")
    spec = fake_world.spec(tmp_path)
    last = spec.stages[1]
    stages = [
        msgspec.structs.replace(
            last,
            name=f"places-{places}",
            folder=f"{spec.job_dir}/places-{places}",
            total_steps=2,
            evals=(),
            taskset=msgspec.structs.replace(
                last.taskset, sampling=msgspec.structs.replace(last.taskset.sampling, max_tokens=tokens)
            ),
            rollout=msgspec.structs.replace(last.rollout, concurrency=places),
        )
        for tokens, places in PLACES.items()
    ]
    run = await fake_world.run(log, msgspec.structs.replace(spec, stages=(spec.stages[0], *stages)), clock, ids)
    async with asyncio.timeout(60):
        await run.drive()
    assert run.state.spine.status is Status.COMPLETED, (run.state.spine.code, run.state.spine.reason)
    assert peak == PLACES
    started = [decode(record).event for place in TRUTH for record in await log.read(place, 0)]
    assert {each.capacity for each in started if isinstance(each, WorkerStarted) and each.role == "explorer"} == {4}
    await log.close()
