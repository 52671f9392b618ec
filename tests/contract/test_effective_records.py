"""Every reader of a log takes in the same events: what is void, foreign or repeated changes nothing for any of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest
from synthetic.log.garbage import garbage
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.observe.metrics_follower import show
from rftd.daemon.run.registry import Registry
from rftd.daemon.serve.external_worker import Crews
from rftd.ops.clock import ManualClock
from rftd.ops.ids import SeededIds
from rftd.ops.metrics import Metrics
from rftd.storage.projector.fold import TableFold
from rftd.storage.projector.projections.projection import Projection
from rftd.streams.events import batch, experiment, task, worker
from rftd.streams.events.catalogue import UnknownVersionError, definitions
from rftd.streams.events.experiment import Fence
from rftd.streams.folds.failed_tasks import FailedTasks
from rftd.streams.folds.letters import HOME, Letters
from rftd.streams.log import topics
from rftd.streams.log.effective import effective, effective_records, of_experiment
from rftd.streams.log.envelope import Decoded, Draft, Head, Position
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog, start_of
from rftd.streams.log.shared_history import fold_until, shared_history
from rftd.streams.log.start import beginning_of
from rftd.streams.log.topics import TRUTH, Partition, partition_of
from rftd.streams.memory import MemoryLog
from rftd.streams.portable.experiment_records import OwnRecords
from rftd.streams.portable.export import OutsideNames

pytestmark = pytest.mark.anyio


class Scene:
    """A run that goes on, and after it everything that must change nothing."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.run = SyntheticRun(self.recorder, faults=False)
        self.run.begin()
        self.run.warm_up()
        self.run.explore()
        for role, place in (("controller", self.run.spine), ("dispatcher", Partition(topics.TASKS, 0))):
            self.recorder.fence(role, self.run.id, place)
        self.clean = list(self.recorder.drafts)
        self._zombies()
        self._nobodies()
        self._strays()
        for draft in garbage(self.run.id, SeededIds(self.recorder.clock, 5), self.recorder.clock):
            self.recorder.put(draft)

    def _zombies(self) -> None:
        """Replaced owners, a rival whose fence came too late, and the fence of a rival once more."""
        recorder, id, spine = self.recorder, self.run.id, self.run.spine
        slot = Partition(topics.TASKS, 0)
        recorder.write(experiment.ExperimentFailed(code="X", reason="zombie"), id, role="controller", epoch=1)
        closed = task.GroupClosed(
            group=recorder.ids.new(), stage=1, sequence=7, members=(), failed=4, code="X", reason="z"
        )
        recorder.write(closed, id, role="dispatcher", epoch=1, partition=slot)
        rival = Fence(role="controller", epoch=3, previous=1, owner=recorder.ids.new())
        recorder.write(rival, id, role="controller", epoch=3, partition=spine)
        recorder.write(experiment.ExperimentCompleted(), id, role="controller", epoch=3)
        first = next(draft for draft in self.clean if b"fence" in draft.head and draft.partition == spine)
        recorder.put(first)

    def _nobodies(self) -> None:
        """An owner's decision by nobody, and notes that nobody owns under a role."""
        recorder, id = self.recorder, self.run.id
        plan = batch.BatchPlanned(batch=recorder.ids.new(), step=3, stage=1, observed=(), decided_at_ns=1)
        recorder.write(plan, id, role="", epoch=0)
        started = worker.WorkerStarted(
            worker=recorder.ids.new(), role="explorer", slot=5, host="h", pid=9, process_start_s=1
        )
        recorder.write(started, id, role="trainer", epoch=1, key=started.worker)
        letter = worker.RecordDeadLettered(
            stream=self.run.spine.stream, partition=0, offset=0, consumer="projector", code="X", reason="no"
        )
        recorder.write(letter, None, role="controller", epoch=1, partition=HOME)

    def _strays(self) -> None:
        """Records without effect: one where its type does not belong, under its owner's epoch; another experiment's."""
        recorder, id = self.recorder, self.run.id
        saved = next(draft for draft in self.clean if b"checkpoint.committed" in draft.head)
        other = msgspec.msgpack.decode(saved.value) | {"path": "elsewhere", "step": 9}
        stray = Draft(partition_of(topics.WEIGHTS, id), recorder.ids.new(), saved.head, msgspec.msgpack.encode(other))
        recorder.put(stray)
        recorder.write(experiment.ExperimentPaused(reason="theirs"), recorder.ids.new())


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def log_of(drafts: Sequence[Draft]) -> MemoryLog:
    """A log that takes an id as often as it comes, as Kafka may."""
    log = MemoryLog()
    for draft in drafts:
        log._positions.pop(draft.id.bytes, None)
        await log.append([draft])
    return log


class Tap:
    """A fold that remembers where what it was given lies."""

    def __init__(self) -> None:
        self.found: list[Position] = []

    def apply(self, decoded: Decoded) -> None:
        self.found.append(Position(decoded.partition, decoded.offset))


Reader = Callable[[EventLog, UUID], Awaitable[list[Position]]]


async def one_by_one(log: EventLog, id: UUID) -> list[Position]:
    tap = Tap()
    fences = FenceView()
    for partition in TRUTH:
        for record in await log.read(partition, 0, max_records=10_000):
            decoded = effective(record, fences, of_experiment(id))
            if decoded is not None:
                tap.apply(decoded)
    return tap.found


async def as_a_generator(log: EventLog, id: UUID) -> list[Position]:
    tap = Tap()
    fences = FenceView()
    for partition in TRUTH:
        async for decoded in effective_records(log, partition, fences, is_wanted=of_experiment(id)):
            tap.apply(decoded)
    return tap.found


async def as_a_follower(log: EventLog, id: UUID) -> list[Position]:
    tap = Tap()
    follower = Follower(log, tap, experiment=id, positions=start_of(TRUTH), clock=ManualClock())
    try:
        await follower.catch_up()
    finally:
        await follower.close()
    return tap.found


async def as_history(log: EventLog, id: UUID) -> list[Position]:
    tap = Tap()
    await fold_until(log, tap, id, {partition: mark.next_offset for partition, mark in (await log.heads()).items()})
    return tap.found


async def as_the_projector(log: EventLog, id: UUID) -> list[Position]:
    tap = Tap()

    def handle(event: object, decoded: Decoded, changes: object) -> None:
        if decoded.head.experiment in (None, id):
            tap.apply(decoded)

    every = Projection(name="tap", version=1, tables=(), handlers={each.kind: handle for each in definitions()})
    fold = TableFold({}, projections=[every])
    for partition in TRUTH:
        fold.take(await log.read(partition, 0, max_records=10_000))
    return tap.found


class TappedFeed(MetricsFeed):
    def __init__(self, experiment: UUID) -> None:
        super().__init__(Metrics(version="1"))
        self.tap = Tap()
        self._only = experiment

    def observe(self, decoded: Decoded) -> None:
        if decoded.head.experiment in (None, self._only):
            self.tap.apply(decoded)


async def as_metrics(log: EventLog, id: UUID) -> list[Position]:
    feed = TappedFeed(id)
    fences = FenceView()
    for partition in TRUTH:
        show(await log.read(partition, 0, max_records=10_000), feed, fences)
    return feed.tap.found


READERS: dict[str, Reader] = {
    "one by one": one_by_one,
    "generator": as_a_generator,
    "follower": as_a_follower,
    "history": as_history,
    "projector": as_the_projector,
    "metrics": as_metrics,
}


@pytest.mark.parametrize("name", READERS)
async def test_every_reader_takes_in_the_same_events(scene: Scene, name: str) -> None:
    id = scene.run.id
    written = {Position(each.partition, each.offset) for each in scene.recorder.records[: len(scene.clean)]}
    planted = await log_of(scene.recorder.drafts)
    found = await READERS[name](planted, id)
    if name == "metrics":  # whole experiences are counted without being decoded
        written = {each for each in written if each.partition.stream != topics.EXPERIENCES}
        found = [each for each in found if each.partition.stream != topics.EXPERIENCES]
    assert len(found) == len(written)
    assert set(found) == written


async def answers(log: EventLog, id: UUID) -> dict[str, Any]:
    """What those say who keep no events, but what follows from them."""
    registry = Registry(log)
    await registry.catch_up()
    await registry.close()
    entry = registry.entries[id]
    crews = Crews(log)
    crew = await crews.of([entry])
    await crews.close()
    letters = Letters()
    await letters.catch_up(log)
    names = OutsideNames()
    for partition in TRUTH:
        async for chunk in OwnRecords(log, id).chunks(partition):
            for record in chunk:
                names.take(record)
    return {
        "registry": (entry.status, entry.spine.stage, entry.fence, entry.unread),
        "crews": crew,
        "letters": (letters.letters, letters.verdicts),
        "beginning": await beginning_of(log, id),
        "fork": (await shared_history(log, id, 2)).forked,
        "failed tasks": await FailedTasks().read(log),
        "export": (names.undeleted_checkpoints(), names.kept_weights(), names.artifacts, names.spine.status),
    }


async def test_what_has_no_effect_changes_no_answer(scene: Scene) -> None:
    clean = await answers(await log_of(scene.clean), scene.run.id)
    planted = await answers(await log_of(scene.recorder.drafts), scene.run.id)
    for name, answer in clean.items():
        assert planted[name] == answer, name


async def test_a_repeated_event_comes_again_and_a_repeated_fence_does_not(scene: Scene) -> None:
    step = next(draft for draft in scene.clean if b"step.completed" in draft.head)
    fence = next(draft for draft in scene.clean if b"fence" in draft.head and draft.partition == scene.run.spine)
    log = await log_of([*scene.clean, step, fence])
    first, again = [each for each in await log.read(scene.run.spine, 0, max_records=10_000) if each.head == step.head]
    found = [each for each in await as_a_follower(log, scene.run.id) if each.partition == scene.run.spine]
    assert [each.offset for each in found if each.offset in (first.offset, again.offset)] == [
        first.offset,
        again.offset,
    ]
    assert max(each.offset for each in found) == again.offset


def newer(scene: Scene, type: str, partition: Partition, of: UUID | None) -> Draft:
    head = Head(id=scene.recorder.ids.new(), type=type, version=99, experiment=of, source="later", time_ns=1)
    return Draft(partition, head.id, msgspec.msgpack.encode(head), b"\x80")


@pytest.mark.parametrize("name", [name for name in READERS if name != "metrics"])
async def test_a_newer_version_stops_whoever_keeps_state(scene: Scene, name: str) -> None:
    log = await log_of([*scene.clean, newer(scene, "experiment.paused", scene.run.spine, scene.run.id)])
    with pytest.raises(UnknownVersionError, match="newer"):
        await READERS[name](log, scene.run.id)


async def test_a_newer_version_stops_folds_of_several_experiments(scene: Scene) -> None:
    registry = Registry(await log_of([*scene.clean, newer(scene, "experiment.paused", scene.run.spine, scene.run.id)]))
    with pytest.raises(UnknownVersionError, match="newer"):
        await registry.catch_up()
    await registry.close()
    with pytest.raises(UnknownVersionError, match="newer"):
        await Letters().catch_up(await log_of([newer(scene, "record.dropped", HOME, None)]))
    with pytest.raises(UnknownVersionError, match="newer"):
        await FailedTasks().read(await log_of([newer(scene, "task.leased", Partition(topics.TASKS, 0), scene.run.id)]))


async def test_metrics_and_exports_go_on_past_a_newer_version(scene: Scene) -> None:
    before = await as_metrics(await log_of(scene.clean), scene.run.id)
    later = await log_of([*scene.clean, newer(scene, "experiment.paused", scene.run.spine, scene.run.id)])
    assert await as_metrics(later, scene.run.id) == before
    names = OutsideNames()
    for record in await later.read(scene.run.spine, 0, max_records=10_000):
        names.take(record)
    assert names.spine.stage == 1


async def test_records_that_nobody_wants_are_not_decoded(scene: Scene) -> None:
    """Those of another experiment stop nobody, whatever their version."""
    other = UUID(int=3)
    place = partition_of(topics.EXPERIMENTS, other)
    log = await log_of([*scene.clean, newer(scene, "experiment.paused", place, other)])
    assert len(await as_a_follower(log, scene.run.id)) == len(scene.clean)
