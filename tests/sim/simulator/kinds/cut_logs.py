"""A log that is shortened while everything is down, with some of its survivors: it is stopped, or nobody remembered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock
from weakref import WeakKeyDictionary

import msgspec

from rftd.storage.files.checkpoint_witness import read_witness
from rftd.storage.files.snapshots import FOLDER
from rftd.storage.files.survivors import LossesFile
from rftd.streams.events.checkpoint import CheckpointCommitted, CheckpointDeleted
from rftd.streams.events.experiment import Fence, HeadRef, LossAccepted
from rftd.streams.folds.run_state import RunState, partitions_of
from rftd.streams.folds.snapshot import Nothing, Snapshot, unpack
from rftd.streams.log import topics
from rftd.streams.log.chain import GENESIS, Heads, Mark
from rftd.streams.log.codec import decode, decode_head
from rftd.streams.log.envelope import Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.topics import TRUTH, Partition
from rftd.streams.memory import MemoryLog
from rftd.streams.sqlite.heads_file import FILE_NAME, read_heads
from rftd.streams.verify.checker import verify
from simulator.kinds.kind import Kind

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World

DOWN_S = 45.0
"""What was under way is lost or has arrived by then."""
WATCHED_S = 20.0
"""So long no daemon may append to the experiment, if somebody remembers what is lost."""


class Plot(msgspec.Struct, frozen=True):
    """When the copy is made and when it is put back, of which partitions, and what else survives."""

    copied_records: int
    """So many records of truth are in the copy, at least."""
    lost_records: int
    """So many more than those are lost, at least."""
    share: float
    """The share of the partitions that are cut; 1: the whole log, as it was."""
    survivors: tuple[str, ...]
    """The files in the job's folder that are left there: `snapshots`, `memory`."""
    seed: int


class Outcome(msgspec.Struct):
    """What became of it, for the oracle."""

    whole: bool
    remembered: str
    appended: list[str] = []
    """What daemons appended to the experiment before a person had decided."""
    accepted: bool = False


_outcomes: WeakKeyDictionary[World, Outcome] = WeakKeyDictionary()
"""The outcomes of worlds that are under way. (The id of one that is gone is soon that of another.)"""


def noticed(world: World) -> Iterator[str]:
    """Either no survivor remembered what is lost, or nothing was appended before a person had said so, on record."""
    outcome = _outcomes.get(world)
    if outcome is None or not outcome.remembered:
        return
    if outcome.appended:
        yield f"{outcome.remembered}, and still it was continued: {', '.join(outcome.appended[:3])}"
    decisions = [each for each in _events(world) if isinstance(each, LossAccepted)]
    if outcome.accepted and not decisions:
        yield f"{outcome.remembered}, and no decision is on record"


class CutLogs(Kind):
    """Everything goes down, and what comes up again has an older log under it."""

    name: ClassVar[str] = "cut log"
    share: ClassVar[float] = 0.3
    oracles = (noticed,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """When and how the log is cut.

        Never with a fork, whose parent may be lost under it, nor with callers to whom the lost part was said.
        """
        if scenario.fork_at_s is not None or "colliding keys" in scenario.extras:
            return None
        return Plot(
            copied_records=chance.choice([8, 20, 40, 80]),
            lost_records=chance.choice([3, 10, 30]),
            share=chance.choice([1.0, 1.0, 0.3, 0.6]),
            survivors=chance.choice([(), ("snapshots",), ("memory",), ("memory",), ("snapshots", "memory")]),
            seed=chance.randrange(1 << 30),
        )

    def around(self, world: World, plot: Plot) -> AbstractContextManager[Any]:
        """Judges a log that lost some of its partitions by whether that is noticed: the rest need not fit together."""

        async def judged(world: World) -> None:
            outcome = _outcomes.get(world)
            if outcome is None or outcome.whole:
                await judge(world)
                return
            world.failures += [f"noticed: {what}" for what in noticed(world)]
            lost = [each.what for each in (await verify(world.log)).findings if each.rule == "heads-remembered"]
            world.failures += [f"verify: heads-remembered: {what}" for what in lost]

        from simulator.oracles import judge

        return mock.patch("simulator.world.judge", judged)

    def begin(self, world: World, plot: Plot) -> None:
        """Plays it in a process of the world's own."""
        world.process.spawn(_play(world, plot))


async def _play(world: World, plot: Plot) -> None:
    log, machine = world.log, world.machine
    if not await _reached(world, plot.copied_records):
        return
    old = dict(log.tail.heads)
    if not await _reached(world, plot.copied_records + plot.lost_records):
        return
    machine.take_down()
    await asyncio.sleep(DOWN_S)
    _take_away(world.job / FOLDER, plot.survivors)
    chance = random.Random(plot.seed)
    whole = {partition for partition in TRUTH if _end(log, partition) > _end_of(old, partition)}
    some = {partition for partition in sorted(whole) if chance.random() < plot.share}
    cut = some if some != whole and _remembered(world, old, some) else whole
    remembered = _remembered(world, old, cut)
    world.tell(f"THE LOG IS CUT in {len(cut)} of {len(whole)} partitions; remembered: {remembered or 'nothing'}")
    world.chaos.hits[f"cut log {'remembered' if remembered else 'forgotten'}"] += bool(cut)
    for partition in cut:
        _cut(log, partition, old.get(partition, Mark(0, GENESIS)))
    world.network.acked = [each for each in world.network.acked if each[1].offset < _end(log, each[1].partition)]
    world.chaos.damaged.update(world.job.rglob("global_step_*"))  # of a time that is no more
    world.chaos.damaged.update((world.job / "weights").glob("*"))
    world.state = RunState(world.experiment)
    world._fences = FenceView()
    world._read = {}
    world.observe()
    # What the lost part says was deleted, the log announces again; no trainer before the cut was wrong to remove it.
    world.chaos.damaged.update(Path(each.path) for each in world.state.checkpoints.values())
    world.chaos.damaged.update(Path(each.path) for each in world.state.weights.published.values())
    outcome = _outcomes[world] = Outcome(cut == whole, remembered)
    machine.losses = LossesFile(world.root / "losses.json")  # what is appended by others may hide what is lost
    machine.bring_up()
    if not remembered:
        return
    before = {partition: _end(log, partition) for partition in partitions_of(world.experiment)}
    await asyncio.sleep(WATCHED_S)
    outcome.appended = list(_appended(world, before))
    if outcome.appended:
        return
    outcome.accepted = await world.owner._ask(
        "ACCEPT", lambda daemon: daemon.accept_losses([world.spec.name], by="the owner"), times=300, refusals=True
    )
    if cut != whole:  # what is left need not fit together
        from simulator.scenario import Command

        world.scenario.commands.append(Command("cancel", world.loop.time()))
        await world.owner.order(world.scenario.commands[-1])


async def _reached(world: World, records: int) -> bool:
    """True once the log holds so many of truth; False if the experiment or its trouble ends before."""
    while sum(_end(world.log, partition) for partition in TRUTH) < records:
        await asyncio.sleep(0.1)
        world.observe()
        if world.over(world.state) or world.loop.time() > world.scenario.calm_s:
            return False
    return True


def _take_away(folder: Path, survivors: tuple[str, ...]) -> None:
    if "snapshots" not in survivors:
        for path in folder.glob("*.fold*"):
            path.unlink()
    if "memory" not in survivors:
        (folder / FILE_NAME).unlink(missing_ok=True)


def _cut(log: MemoryLog, partition: Partition, head: Mark) -> None:
    gone = log._records.get(partition, [])[head.next_offset :]
    for record in gone:
        place = log._positions.get(decode_head(record).id.bytes)
        if place is not None and place.partition == partition and place.offset >= head.next_offset:
            del log._positions[decode_head(record).id.bytes]
    log._records[partition] = log._records.get(partition, [])[: head.next_offset]
    log._tail.advance((), {partition: head})


def _remembered(world: World, old: Heads, cut: set[Partition]) -> str:
    """Who remembers something of what is lost, read without the product's own gathering; empty if nobody does."""
    for by, heads in _witnesses(world, old, cut):
        for partition, mark in heads.items():
            if partition in cut and partition in _concerned(world) and mark.next_offset > _end_of(old, partition):
                return f"{by} remembers {partition}@{mark.next_offset - 1}"
    return ""


def _concerned(world: World) -> frozenset[Partition]:
    return frozenset(partitions_of(world.experiment)) & frozenset(TRUTH)


def _witnesses(world: World, old: Heads, cut: set[Partition]) -> Iterator[tuple[str, Heads]]:
    folder = world.job / FOLDER
    for path in sorted(folder.glob("*.fold*")):
        yield path.name, unpack(path.read_bytes(), Snapshot[Nothing]).heads()
    yield FILE_NAME, read_heads(folder / FILE_NAME)
    fences = FenceView()
    newest: dict[object, tuple[HeadRef, ...]] = {}
    named: set[str] = set()
    for stream in (topics.EXPERIMENTS, topics.CHECKPOINTS):
        partition = topics.partition_of(stream, world.experiment)
        for record in world.log.stored(partition, 0, _end_of(old, partition) if partition in cut else 1 << 30):
            decoded = decode(record)
            event = decoded.event
            if not fences.admit(partition, decoded.head, event):
                continue
            if isinstance(event, Fence) and event.heads:
                newest["the newest fence"] = event.heads
            elif isinstance(event, CheckpointCommitted):
                newest[event.step, event.generation] = event.heads
                named.add(event.path)
            elif isinstance(event, CheckpointDeleted):
                newest.pop((event.step, event.generation), None)
                named.discard(event.path)
    for path in sorted(world.job.rglob("global_step_*")):
        if str(path) not in named and (witness := read_witness(path)) is not None:
            newest[path.name] = witness.heads
    for by, refs in newest.items():
        yield str(by), {Partition(ref.stream, ref.partition): Mark(ref.next_offset, ref.chain) for ref in refs}


def _appended(world: World, before: dict[Partition, int]) -> Iterator[str]:
    """What daemons wrote to the experiment meanwhile, beside commands of its owner, which are kept for its next run."""
    for partition, start in before.items():
        for record in world.log.stored(partition, start, 1 << 30):
            head = decode_head(record)
            own = head.experiment == world.experiment and head.source.startswith("daemon/")
            if partition in TRUTH and own and head.correlation is None:
                yield f"{head.type} at {partition}@{record.offset}"


def _events(world: World) -> Iterator[object]:
    spine = topics.partition_of(topics.EXPERIMENTS, world.experiment)
    found: list[Record] = world.log.stored(spine, 0, 1 << 30)
    return (decode(record).event for record in found)


def _end(log: MemoryLog, partition: Partition) -> int:
    return log.tail.head(partition).next_offset


def _end_of(heads: Heads, partition: Partition) -> int:
    return heads.get(partition, Mark(0, GENESIS)).next_offset
