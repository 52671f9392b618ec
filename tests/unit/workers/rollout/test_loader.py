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
from rftd.workers.rollout.loader import WeightsLoader
from rftd.workers.rollout.outbox import Outbox
from rftd.workers.rollout.version_gate import VersionGate
from rftd.workers.rollout.view import ExplorerView
from rftd.workers.weights import checkpoint
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
            async with gate.evaluating(5, 0):
                pass
        weights = {"w": TensorBytes("uint8", (3,), memoryview(b"abc"))}
        assert view.spine.spec is not None
        view.spine.spec = msgspec.structs.replace(view.spine.spec, job_dir=str(tmp_path))
        written = checkpoint.export(weights, tmp_path / "weights" / "v5-g0", version=5, generation=0)
        view.weights.published[5, 0] = msgspec.structs.replace(
            view.weights.published[5, 0], path=written.path, manifest=written.manifest, checksum=written.checksum
        )
        async with gate.evaluating(5, 0):
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
