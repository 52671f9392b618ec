"""What survivors remember of a log that lost records: whom it stops, what goes on, and what a person decides."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.run.registry import Registry
from rftd.daemon.run.supervisor.loss_check import HEADS_IN_A_TURN, LossCheck, Survivors
from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.ops.errors import LogLossError
from rftd.ops.logs import logger
from rftd.storage.files.survivors import LossesFile
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import ExperimentWarned, Fence, HeadRef
from rftd.streams.folds.run_state import RunState
from rftd.streams.log import topics
from rftd.streams.log.chain import Mark
from rftd.streams.log.codec import Writer
from rftd.streams.log.envelope import Draft, Record, Stretch
from rftd.streams.log.lost_records import Witness
from rftd.streams.log.topics import TRUTH, Partition, partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.sqlite.socket.append_gate import AppendGate
from rftd.streams.sqlite.socket.client import SocketLog
from rftd.streams.sqlite.socket.server import LogServer

pytestmark = pytest.mark.anyio


class Scene:
    """Two experiments under way in two spines, and what was lost of their log."""

    def __init__(self, folder: Path) -> None:
        self.recorder = Recorder()
        self.one, self.two = self._begun("one", folder), self._begun("two", folder)
        while partition_of(topics.EXPERIMENTS, self.two) == partition_of(topics.EXPERIMENTS, self.one):
            self.two = self._begun("two", folder)
        self.file = LossesFile(folder / "losses.json")
        self.stopped: list[UUID] = []

    def _begun(self, name: str, folder: Path) -> UUID:
        run = SyntheticRun(self.recorder, name=name, job_dir=str(folder / name))
        run.begin()
        return run.id

    async def log(self, drafts: list[Draft] | None = None) -> MemoryLog:
        log = MemoryLog()
        await log.append(self.recorder.drafts if drafts is None else drafts)
        return log

    async def heard(self, log: MemoryLog, *witnesses: Witness, door: AppendGate | None = None) -> LossCheck:
        loss_check, registry = LossCheck(log, self.file, logger=logger(), door=door), Registry(log)
        await loss_check.note(witnesses)
        await registry.catch_up()
        await loss_check.hear(registry.entries, self.stopped.append)
        return loss_check

    def without_the_end_of(self, partition: Partition, records: int) -> list[Draft]:
        """What is left if the last records of one partition are lost."""
        own = [draft for draft in self.recorder.drafts if draft.partition == partition]
        gone = {draft.id for draft in own[-records:]}
        return [draft for draft in self.recorder.drafts if draft.id not in gone]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_what_is_lost_of_one_spine_stops_that_experiment_alone(scene: Scene) -> None:
    spine = partition_of(topics.EXPERIMENTS, scene.one)
    whole = await (await scene.log()).heads()
    log = await scene.log(scene.without_the_end_of(spine, 1))
    loss_check = await scene.heard(log, Witness("somebody", whole))
    assert set(loss_check.stopped()) == {scene.one}
    error = loss_check.refusal(scene.one)
    assert error is not None
    assert loss_check.refusal(scene.two) is None
    last = whole[spine].next_offset - 1
    assert error.where == f"{spine}@{last}"
    assert f"the log ends before {last}; somebody remembers it" in error.what
    assert "--accept-loss one" in (error.fix or "")


async def test_what_is_lost_of_a_shared_partition_stops_all_that_were_under_way(scene: Scene) -> None:
    workers = Partition(topics.WORKERS, 0)
    whole = await (await scene.log()).heads()
    log = await scene.log(scene.without_the_end_of(workers, 2))
    loss_check = await scene.heard(log, Witness("somebody", {workers: whole[workers]}))
    assert set(loss_check.stopped()) == {scene.one, scene.two}


async def test_what_was_noticed_is_known_to_the_next_daemon_until_the_right_log_is_back(scene: Scene) -> None:
    whole = await scene.log()
    log = await scene.log(scene.recorder.drafts[:-3])
    first = await scene.heard(log, Witness("somebody", await whole.heads()))
    stopped = set(first.stopped())
    assert stopped
    assert set((await scene.heard(log)).stopped()) == stopped
    assert (await scene.heard(whole)).stopped() == {}
    assert set((await scene.heard(log)).stopped()) == stopped, "nothing that remembers is removed"


async def test_an_accepted_loss_stops_nobody_and_a_new_one_does(scene: Scene) -> None:
    whole = await (await scene.log()).heads()
    log = await scene.log(scene.recorder.drafts[:-3])
    witness = Witness("somebody", whole)
    loss_check = await scene.heard(log, witness)
    writer = Writer(source="test", clock=scene.recorder.clock, ids=scene.recorder.ids)
    await loss_check.accept(["one", "two"], writer, by="a person")
    again = await scene.heard(log, witness)
    assert again.stopped() == {}
    assert again.losses
    last = partition_of(topics.EXPERIMENTS, scene.one)
    newer = await log.heads()
    newer[last] = newer[last]._replace(next_offset=newer[last].next_offset + 1)
    assert set((await scene.heard(log, Witness("another", newer))).stopped()) == {scene.one}


async def test_the_newest_fence_is_heard(scene: Scene) -> None:
    spine, workers = partition_of(topics.EXPERIMENTS, scene.one), Partition(topics.WORKERS, 0)
    mark = (await (await scene.log()).heads())[workers]
    head = HeadRef(*workers, *mark)
    fence = Fence(role="controller", epoch=2, previous=1, owner=UUID(int=1), heads=(head,))
    scene.recorder.write(fence, scene.one, role="controller", epoch=2, partition=spine)
    log = await scene.log(scene.without_the_end_of(workers, 1))
    loss_check = await scene.heard(log)
    assert [loss.head.by for loss in loss_check.losses] == ["the newest fence of one"]


async def test_a_worker_that_comes_back_and_remembers_more_stops_what_it_remembers(scene: Scene) -> None:
    """It is refused as ever, and its memory outlives it; what its experiment's other workers send is refused too."""
    spine = partition_of(topics.EXPERIMENTS, scene.one)
    before, left = await scene.log(), scene.without_the_end_of(spine, 1)
    writer = Writer(source="test", clock=scene.recorder.clock, ids=scene.recorder.ids)
    last = next(draft for draft in reversed(scene.recorder.drafts) if draft.partition == spine)
    path = scene.file._path.with_name("s")
    async with LogServer(before, path):
        worker = await SocketLog.connect(path)
        await worker.append([last])
    log, door = await scene.log(left), AppendGate()
    async with LogServer(log, path, door=door):
        late = await SocketLog.connect(path)
        waiting = asyncio.ensure_future(late.append([writer.draft(ExperimentWarned(text="x"), experiment=scene.two)]))
        loss_check = await scene.heard(log, door=door)
        await waiting
        assert loss_check.stopped() == {}
        with pytest.raises(LogLossError):
            await worker.heads()
        assert set(loss_check.stopped()) == {scene.one} == set(scene.stopped)
        with pytest.raises(LogLossError, match="appends are refused until a person decides"):
            await late.append([writer.draft(ExperimentWarned(text="x"), experiment=scene.one)])
        await late.append([writer.draft(ExperimentWarned(text="x"), experiment=scene.two)])
        await late.close()
        await worker.close()
    assert spine in TRUTH
    assert set((await scene.heard(log)).stopped()) == {scene.one}


class _Gapped(MemoryLog):
    """A log of which somebody else deleted records, as on Kafka; whoever has read past them knows."""

    missing = (Partition(topics.WORKERS, 0), Stretch(0, 0))
    met = False

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        place, (first, end) = self.missing
        if partition == place and first <= start < end:
            start = end
        return await super().read(partition, start, max_records=max_records, max_size_bytes=max_size_bytes)

    async def deleted(self) -> list[tuple[Partition, Stretch]]:
        return [self.missing] if self.met else []


async def test_a_gap_that_a_run_reads_past_stops_it_and_the_next_daemon_still_knows(scene: Scene) -> None:
    log = _Gapped()
    await log.append(scene.recorder.drafts)
    spine = partition_of(topics.EXPERIMENTS, scene.one)
    loss_check = await scene.heard(log)
    entry = loss_check._experiments[scene.one]
    executor: Any = None
    await loss_check.compare_run_heads(entry, executor, RunState(scene.one))
    log.missing = (spine, Stretch(1, 3))
    log.met = True
    with pytest.raises(LogLossError, match=r"was deleted, and more before it \(evidence: the gap beginning at 1"):
        await loss_check.compare_run_heads(entry, executor, RunState(scene.one))
    assert set(loss_check.stopped()) == {scene.one}
    log.met = False
    later = await scene.heard(log)
    assert set(later.stopped()) == {scene.one}, "who begins above the gap does not meet it"
    await later.accept(
        ["one"], Writer(source="test", clock=scene.recorder.clock, ids=scene.recorder.ids), by="a person"
    )
    assert (await scene.heard(log)).stopped() == {}


class _Counted(MemoryLog):
    """A log that counts the heads that it is asked to compare."""

    compared = 0

    async def check_heads(self, remembered: dict[Partition, Mark]) -> None:
        self.compared += len(remembered)
        await super().check_heads(remembered)


def saved_at_each_record(log: MemoryLog, experiment: UUID) -> RunState:
    """A run that saved a checkpoint after each record of its spine, which all remember."""
    state = RunState(experiment)
    spine = partition_of(topics.EXPERIMENTS, experiment)
    for step, record in enumerate(log.stored(spine, 0, 1 << 30)):
        state.checkpoints[step, 0] = CheckpointCommitted(
            step=step,
            generation=0,
            stage=0,
            stage_step=step,
            path=f"/nowhere/global_step_{step}",
            files=(),
            size_bytes=0,
            checksum="",
            sha256="",
            heads=(HeadRef(*spine, record.offset + 1, record.chain),),
        )
    return state


async def long_run(scene: Scene) -> tuple[_Counted, Survivors, RunState, LossCheck]:
    """A run with twice as many checkpoints as older heads are compared in a turn."""
    for _ in range(2 * HEADS_IN_A_TURN):
        scene.recorder.write(ExperimentWarned(text="x"), scene.one)
    log = _Counted()
    await log.append(scene.recorder.drafts)
    loss_check = await scene.heard(log)
    executor: Any = None
    survivors = Survivors(loss_check, loss_check._experiments[scene.one], executor, ManualClock())
    return log, survivors, saved_at_each_record(log, scene.one), loss_check


async def test_a_run_with_many_checkpoints_begins_after_a_look_at_the_newest(scene: Scene) -> None:
    log, survivors, state, loss_check = await long_run(scene)
    log.compared = 0
    await survivors.hear(state)
    assert log.compared == 1
    for _ in range(4):
        await survivors.compare_older_heads()
    assert log.compared == len(state.checkpoints)
    # A run that is taken up again, as the log comes back, has them compared no more.
    executor: Any = None
    again = Survivors(loss_check, loss_check._experiments[scene.one], executor, ManualClock())
    await again.hear(state)
    await again.compare_older_heads()
    assert log.compared == len(state.checkpoints) + 1


async def test_an_older_head_that_is_lost_stops_the_run_beside_which_it_is_compared(scene: Scene) -> None:
    _, survivors, state, loss_check = await long_run(scene)
    former = state.checkpoints[HEADS_IN_A_TURN + 10, 0]
    (ref,) = former.heads
    other = HeadRef(ref.stream, ref.partition, ref.next_offset, bytes(32))
    state.checkpoints[HEADS_IN_A_TURN + 10, 0] = msgspec.structs.replace(former, heads=(other,))
    await survivors.hear(state)
    await survivors.compare_older_heads()
    assert loss_check.stopped() == {}
    with pytest.raises(LogLossError, match=f"{ref.next_offset - 1} is not the record that was acknowledged"):
        await survivors.compare_older_heads()
    assert set(scene.stopped) == {scene.one}
    assert set((await scene.heard(await scene.log())).stopped()) == {scene.one}, "it is written down"


async def test_a_newest_head_that_is_lost_stops_the_run_before_it_begins(scene: Scene) -> None:
    _, survivors, state, _ = await long_run(scene)
    last = max(state.checkpoints)
    (ref,) = state.checkpoints[last].heads
    beyond = HeadRef(ref.stream, ref.partition, ref.next_offset + 1, ref.chain)
    state.checkpoints[last] = msgspec.structs.replace(state.checkpoints[last], heads=(beyond,))
    with pytest.raises(LogLossError, match="was acknowledged and is gone"):
        await survivors.hear(state)
