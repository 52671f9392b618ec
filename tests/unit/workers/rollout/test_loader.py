"""What a weight sync tells: its phases with the activation, its failures with the heartbeats."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import SystemClock
from rftd.ops.errors import RolloutError
from rftd.ops.ids import SystemIds
from rftd.ops.logs import logger
from rftd.streams.events.weights import WeightsActivated
from rftd.streams.events.worker import Heartbeat
from rftd.streams.log import topics
from rftd.streams.log.codec import decode
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.memory import MemoryLog
from rftd.workers.engines.fake.rollout import FakeArgs, FakeRolloutEngine
from rftd.workers.hosts.membership import Membership
from rftd.workers.rollout import loader as loader_module
from rftd.workers.rollout.loader import WeightsLoader
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.version_gate import UseKind, VersionGate, WeightsUse
from rftd.workers.rollout.view import ExplorerView
from rftd.workers.weights import checkpoint
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.tensor_bytes import TensorBytes


@pytest.mark.anyio
async def test_phases_come_with_the_activation_and_failures_with_heartbeats(tmp_path: Path) -> None:
    """Weights that are gone fail until they are there; an evaluation asks for them."""
    run = SyntheticRun(Recorder()).write()
    log, clock = MemoryLog(), SystemClock()
    member = Membership(log, experiment=run.id, role="explorer", slot=0, clock=clock, ids=SystemIds(clock))
    view = ExplorerView(member.id)
    for record in run.recorder.records:
        view.apply(decode(record))
    gate, outbox = VersionGate(), Outbox(log, clock)
    loader = WeightsLoader(member, view, gate, outbox, logger(), device=asyncio.Lock)
    engine = FakeRolloutEngine(FakeArgs(), clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(loader.run(engine)), tasks.create_task(outbox.run())]
        with pytest.raises(RolloutError):
            async with gate.using(WeightsUse(UseKind.EVALUATION, 5)):
                pass
        weights = {"w": TensorBytes("uint8", (3,), memoryview(b"abc"))}
        assert view.spine.spec is not None
        view.spine.spec = msgspec.structs.replace(view.spine.spec, job_dir=str(tmp_path))
        written = checkpoint.export(weights, tmp_path / "weights" / "v5-g0", version=5, generation=0)
        view.weights.published[5, 0] = msgspec.structs.replace(
            view.weights.published[5, 0], path=written.path, manifest=written.manifest, checksum=written.checksum
        )
        async with gate.using(WeightsUse(UseKind.EVALUATION, 5)):
            assert await outbox.drained(10.0)
        for task in background:
            task.cancel()
        beating = tasks.create_task(member.beat(lambda: None))
        beats = log.subscribe({Partition(topics.HEARTBEATS, 0): 0})
        heard = await beats.next(wait_s=10.0)
        beating.cancel()
    (activated,) = [decode(each).event for each in await log.read(partition_of(topics.WEIGHTS, run.id), 0)]
    assert isinstance(activated, WeightsActivated)
    assert activated.transfer_s > 0 < activated.resume_s
    assert activated.transfer_s + activated.resume_s < activated.duration_s
    beat = decode(heard[0]).event
    assert isinstance(beat, Heartbeat)
    ((reason, failures),) = beat.sync_failures
    assert reason == "load"
    assert failures >= 1


class SlowEngine(FakeRolloutEngine):
    """Loads only once it is released, as a large model does."""

    def __init__(self, clock: SystemClock) -> None:
        super().__init__(FakeArgs(), clock)
        self.began = asyncio.Event()
        self.release = asyncio.Event()

    async def load_weights(self, weights: WeightsRef) -> str:
        self.began.set()
        await self.release.wait()
        self._version = (weights.version, weights.generation)
        return weights.checksum


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["evaluation", "pinned rollout"])
async def test_exact_weights_are_not_used_while_others_are_loaded(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(loader_module, "as_ref", lambda published, spec: published)  # the engine reads no file
    run = SyntheticRun(Recorder()).write()
    log, clock = MemoryLog(), SystemClock()
    member = Membership(log, experiment=run.id, role="explorer", slot=0, clock=clock, ids=SystemIds(clock))
    view = ExplorerView(member.id)
    for record in run.recorder.records:
        view.apply(decode(record))
    gate, outbox, engine = VersionGate(), Outbox(log, clock), SlowEngine(clock)
    newest = view.weights.newest(view.spine)
    assert newest is not None
    older = min(published for published in view.weights.published if published < (newest.version, 0))
    engine._version = older
    gate.set_weights(*older)
    versions: list[tuple[int, int]] = []

    async def use() -> None:
        async with gate.using(WeightsUse(UseKind.EVALUATION if kind == "evaluation" else UseKind.PINNED, *older)):
            versions.append(engine.version)
            for _ in range(100):
                await asyncio.sleep(0)
            versions.append(engine.version)

    async def use_newest() -> None:
        async with gate.using(WeightsUse(UseKind.EVALUATION, newest.version, newest.generation)):
            assert engine.version == (newest.version, newest.generation)

    loader = WeightsLoader(member, view, gate, outbox, logger(), device=asyncio.Lock)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        loading = tasks.create_task(loader.run(engine))
        tasks.create_task(use_newest())
        await engine.began.wait()
        using = tasks.create_task(use())
        for _ in range(20):
            await asyncio.sleep(0)
        engine.release.set()
        await using
        assert versions == [older, older], "its weights were exchanged under it"
        loading.cancel()
