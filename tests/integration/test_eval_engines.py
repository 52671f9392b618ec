"""Evaluations on the engine of the rollouts: they score as on an engine of their own, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rftd.daemon.run.supervisor.run import Run
from rftd.ops import limits
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.streams.events.experience import EvalScored
from rftd.streams.folds.spine import Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.topics import TOPICS, Partition
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, PolicySpec, RolloutSpec, SamplingSpec, TrainerSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.workers.engines.fake.rollout import FakeRolloutEngine
from rftd.workers.generation.engine import Generation, GenerationRequest, RolloutEngine
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.rollout import explorer

OF_AN_EVALUATION = 7
"""The `top_k` of held-out rows, by which the engine's requests are told apart."""
Scores = dict[tuple[int, int], tuple[list[float], list[int]]]


class FirstId(SystemIds):
    """Gives the same first id each time, so that two runs are of one experiment, and draw by the same seeds."""

    _given = False

    def new(self) -> UUID:
        if not self._given:
            self._given = True
            return UUID(int=99)
        return super().new()


def changed(spec: ExperimentSpec, eval_engine: str, **rollout: Any) -> ExperimentSpec:
    """Three chunks of held-out rows after every step of the second stage."""
    rft = spec.stages[-1]
    sampling = SamplingSpec(max_tokens=8, temperature=1.0, top_k=OF_AN_EVALUATION)
    evals = tuple(msgspec.structs.replace(each, sampling=sampling) for each in rft.evals)
    engine = msgspec.structs.replace(rft.rollout, eval_engine=eval_engine, **rollout)
    stages = tuple(msgspec.structs.replace(each, rollout=engine) for each in spec.stages)
    rft = msgspec.structs.replace(stages[-1], evals=evals, eval_interval=1, eval_on_startup=True, eval_at_end=True)
    return msgspec.structs.replace(spec, stages=(*stages[:-1], rft))


async def scores_of(log: SqliteLog) -> Scores:
    """The rewards and the lengths of the answers, by version and first row."""
    found: Scores = {}
    for number in range(TOPICS[topics.EXPERIENCES].partitions):
        for record in await log.read(Partition(topics.EXPERIENCES, number), 0, max_records=10_000):
            event = decode(record).event
            if isinstance(event, EvalScored):
                assert event.metrics == {"failed_rows": 0.0}
                found[event.version, event.row_start] = (event.rewards.view().tolist(), event.tokens.view().tolist())
    return found


async def ran(folder: Path, spec: ExperimentSpec, clock: Any, fake_world: Any) -> Scores:
    """What the evaluations of a run scored; it completed, and verifies."""
    ids = FirstId(clock)
    log = await SqliteLog.open(folder / "log")
    experiment = await fake_world.submitted(log, spec, clock, ids)
    executor = fake_world.executor(log, clock, ids)
    run = Run(log, experiment, executor, owner=ids.new(), clock=clock, ids=ids, logger=logger())
    async with asyncio.timeout(100):
        await run.drive()
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    report = await fake_world.verified(log)
    assert report.clean, report.findings
    scores = await scores_of(log)
    await log.close()
    return scores


WAYS: dict[str, dict[str, Any]] = {
    "fully_async": {
        "synchronizer": Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
        "policy": PolicySpec(max_staleness_versions=2, max_inflight_batches=3),
    },
    "tight": {
        "synchronizer": Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
        "policy": PolicySpec(max_staleness_versions=0, max_inflight_batches=2),
    },
    "no bound": {
        "synchronizer": Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
        "policy": PolicySpec(kind="areal", max_staleness_versions=1, max_inflight_batches=2),
    },
    "fixed": {
        "synchronizer": Synchronizer(sync_method="checkpoint", sync_style="fixed", sync_interval=2, sync_offset=1),
        "policy": PolicySpec(max_staleness_versions=2, max_inflight_batches=3),
    },
    "in step": {
        "synchronizer": Synchronizer(sync_method="checkpoint", sync_style="fixed", sync_interval=1, sync_offset=0),
        "policy": PolicySpec(kind="in_order", max_staleness_versions=0, max_inflight_batches=1),
    },
    "trainer_driven": {
        "synchronizer": Synchronizer(
            sync_method="checkpoint", sync_style="trainer_driven", explorer_sync_interval=2, trainer_sync_interval=1
        ),
        "policy": PolicySpec(max_staleness_versions=2, max_inflight_batches=2),
    },
    "explorer_driven": {
        "synchronizer": Synchronizer(sync_method="checkpoint", sync_style="explorer_driven", sync_interval=2),
        "policy": PolicySpec(max_staleness_versions=2, max_inflight_batches=2),
    },
}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("way", "explorers"),
    [
        ("fully_async", 1),
        ("fixed", 1),
        *(pytest.param(way, 1, marks=pytest.mark.slow) for way in WAYS if way not in ("fully_async", "fixed")),
        *(pytest.param(way, 2, marks=pytest.mark.slow) for way in ("tight", "fixed")),
    ],
)
async def test_a_shared_engine_scores_as_one_of_its_own(
    tmp_path: Path, clock, fake_world, monkeypatch: pytest.MonkeyPatch, way: str, explorers: int
) -> None:
    monkeypatch.setattr(limits, "EVAL_CHUNK_ROWS", 4)
    opened: list[RolloutEngine] = []
    mixed: list[Generation] = []
    open_engine = explorer.open_engine
    generate = FakeRolloutEngine.generate

    async def counted(*given: Any, **options: Any) -> RolloutEngine:
        opened.append(await open_engine(*given, **options))
        return opened[-1]

    async def watched(self: FakeRolloutEngine, request: GenerationRequest) -> Generation:
        generation = await generate(self, request)
        if request.sampling.top_k == OF_AN_EVALUATION:
            mixed.extend([generation] * (len(generation.spans) != 1))
        return generation

    monkeypatch.setattr(explorer, "open_engine", counted)
    monkeypatch.setattr(FakeRolloutEngine, "generate", watched)
    scores: dict[str, Scores] = {}
    for eval_engine in ("own", "shared"):
        folder = tmp_path / eval_engine
        folder.mkdir()
        opened.clear()
        # Slow enough for weights to come while rows are answered.
        args = {"latency_s": 0.01, "latency_sigma": 0.5}
        spec = changed(
            fake_world.spec(folder, **WAYS[way]), eval_engine, engine_args=args, explorers=explorers, concurrency=4
        )
        scores[eval_engine] = await ran(folder, spec, clock, fake_world)
        assert len(opened) == explorers if eval_engine == "shared" else len(opened) > explorers
    assert {version for version, _ in scores["own"]} == {3, 4, 5, 6, 7, 8}
    assert {row for _, row in scores["own"]} == {0, 4, 8}
    assert scores["shared"] == scores["own"]
    assert mixed == [], "an answer of an evaluation is of one version"


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_torch_engine_answers_alike_beside_rollouts(tmp_path: Path, clock, fake_world) -> None:
    model = make_tiny_model(tmp_path / "model", seed=3, hidden_size=32, heads=2)
    parts = {
        "rollout": RolloutSpec(engine="torch", concurrency=8, max_timeout_s=60.0),
        "trainer": TrainerSpec(engine="torch"),
        "model": ModelSpec(path=str(model), max_model_len=32, max_prompt_tokens=16, max_response_tokens=8),
    }
    scores: dict[str, Scores] = {}
    for eval_engine in ("own", "shared"):
        folder = tmp_path / eval_engine
        folder.mkdir()
        spec = fake_world.spec(folder)
        spec = msgspec.structs.replace(
            spec, stages=tuple(msgspec.structs.replace(stage, **parts) for stage in spec.stages)
        )
        scores[eval_engine] = await ran(folder, changed(spec, eval_engine), clock, fake_world)
    # The first version of the stage has the same weights in both runs; later ones depend on what came in time.
    assert scores["shared"][3, 0] == scores["own"][3, 0]
    assert sum(scores["own"][3, 0][1]) > 0
    assert scores["shared"].keys() == scores["own"].keys()
