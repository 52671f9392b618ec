"""`mode: colocate`: explorers and trainer on one device, which is either generating or training, never both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rftd.daemon.run.supervisor.run import Run
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.step import StepCompleted
from rftd.streams.folds.spine import Status
from rftd.streams.log.codec import decode
from rftd.streams.log.log import EventLog
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import ExperimentSpec, PolicySpec, RolloutSpec, TrainerSpec
from rftd.workers.engines.fake.rollout import FakeRolloutEngine
from rftd.workers.engines.fake.trainer import FakeTrainerEngine
from rftd.workers.generation.engine import Generation, GenerationRequest
from rftd.workers.learning.engine import StepResult, TrainBatch

SPIKE_S = 0.005
"""Between a clock that is set and one that only goes on."""


class Device:
    """What the engines did, in order: `+` begins, `-` ends, of `g`eneration and `t`raining; `r`est and `w`ake."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.generating = self.training = 0
        self.most = 0

    def generate(self, by: int) -> None:
        self.generating += by
        self.most = max(self.most, self.generating)
        self.did.append("g+" if by > 0 else "g-")
        assert not (self.generating and self.training)

    def train(self, by: int) -> None:
        self.training += by
        self.did.append("t+" if by > 0 else "t-")
        assert not (self.generating and self.training)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The fake engines, which say what they do and can rest."""
    found, generate, train = Device(), FakeRolloutEngine.generate, FakeTrainerEngine.train

    async def generated(self: FakeRolloutEngine, request: GenerationRequest) -> Generation:
        assert getattr(self, "awake", True)
        found.generate(1)
        try:
            return await generate(self, request)
        finally:
            found.generate(-1)

    def trained(self: FakeTrainerEngine, batch: TrainBatch) -> StepResult:
        assert getattr(self, "awake", True)
        found.train(1)
        try:
            return train(self, batch)
        finally:
            found.train(-1)

    def power(name: str, awake: bool) -> Callable[..., None]:
        def switch(self: object) -> None:
            assert getattr(self, "awake", True) is not awake
            self.awake = awake  # type: ignore[attr-defined]
            found.did.append(name)

        return switch

    def power_async(name: str, awake: bool) -> Callable[..., object]:
        switch = power(name, awake)

        async def switched(self: object) -> None:
            await asyncio.sleep(0)
            switch(self)

        return switched

    monkeypatch.setattr(FakeRolloutEngine, "generate", generated)
    monkeypatch.setattr(FakeTrainerEngine, "train", trained)
    monkeypatch.setattr(FakeTrainerEngine, "rest", power("tr", False), raising=False)
    monkeypatch.setattr(FakeTrainerEngine, "wake", power("tw", True), raising=False)
    monkeypatch.setattr(FakeRolloutEngine, "rest", power_async("gr", False), raising=False)
    monkeypatch.setattr(FakeRolloutEngine, "wake", power_async("gw", True), raising=False)
    return found


def colocated(tmp_path: Path, fake_world, *, turns: bool) -> ExperimentSpec:
    """Two explorers, which run ahead of the trainer as far as they may: nothing but the turns keeps them apart."""
    return fake_world.spec(
        tmp_path,
        synchronizer=Synchronizer(sync_style="fully_async", sync_method="memory", memory_dir=str(tmp_path / "memory")),
        turns=turns,
        policy=PolicySpec(max_staleness_versions=3, max_inflight_batches=3),
        rollout=RolloutSpec(engine="fake", explorers=2, concurrency=3, engine_args={"latency_s": 0.01}),
        trainer=TrainerSpec(engine="fake", engine_args={"step_s": 0.05}),
        eval_interval=1,
        eval_on_startup=True,
    )


async def driven(world, log: EventLog, spec: ExperimentSpec, clock, ids) -> Run:
    run = await world.run(log, spec, clock, ids)
    async with asyncio.timeout(60):
        await run.drive()
    spine = run.state.spine
    assert spine.status is Status.COMPLETED, (spine.code, spine.reason)
    return run


async def intervals(log: EventLog) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """[start, end] of each rollout and of each step of the second stage, as their events tell."""
    rollouts, steps = [], []
    for partition in await log.heads():
        offset = 0
        while records := await log.read(partition, offset, max_records=1000):
            offset = records[-1].offset + 1
            for decoded in map(decode, records):
                end_s = decoded.head.time_ns / 1e9
                match decoded.event:
                    case ExperienceProduced(duration_s=duration_s):
                        rollouts.append((end_s - duration_s, end_s))
                    case StepCompleted(stage=1, duration_s=duration_s):
                        steps.append((end_s - duration_s, end_s))
    return rollouts, steps


def overlaps(rollouts: list[tuple[float, float]], steps: list[tuple[float, float]]) -> int:
    return sum(begin < ended - SPIKE_S and began < end - SPIKE_S for begin, end in rollouts for began, ended in steps)


@pytest.mark.anyio
async def test_no_rollout_overlaps_a_training_step(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, device: Device
) -> None:
    run = await driven(fake_world, log, colocated(tmp_path, fake_world, turns=True), clock, ids)
    rollouts, steps = await intervals(log)
    assert len(rollouts) >= 5 * 16
    assert len(steps) == 5
    assert overlaps(rollouts, steps) == 0
    assert device.most > 1, "rollouts overlap each other"
    assert device.did.count("t+") == 8
    assert len(run.state.spine.evaluated) == 6
    # Whoever is not at work has given its memory up: each side was woken for its turn, and rests after it.
    assert device.did.count("gw")
    assert device.did.count("tw") >= 5
    assert (await fake_world.verified(log)).clean


@pytest.mark.anyio
async def test_without_turns_they_do_overlap(
    tmp_path: Path, log: EventLog, clock, ids, fake_world, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above can fail."""
    generate, train, begun, seen = FakeRolloutEngine.generate, FakeTrainerEngine.train, threading.Event(), []

    async def generated(self: FakeRolloutEngine, request: GenerationRequest) -> Generation:
        begun.set()
        return await generate(self, request)

    def trained(self: FakeTrainerEngine, batch: TrainBatch) -> StepResult:
        if batch.step == 4:  # the first that rollouts run beside
            begun.clear()
            seen.append(begun.wait(20.0))
        return train(self, batch)

    monkeypatch.setattr(FakeRolloutEngine, "generate", generated)
    monkeypatch.setattr(FakeTrainerEngine, "train", trained)
    await driven(fake_world, log, colocated(tmp_path, fake_world, turns=False), clock, ids)
    assert seen == [True]
    assert overlaps(*await intervals(log)) > 0
