"""Each event type has an owner role; a record that says another one, or none, has no effect on any path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.observe.metrics_follower import show
from rftd.daemon.run.registry import Registry
from rftd.ops.clock import ManualClock
from rftd.ops.metrics import Metrics
from rftd.storage.projector.fold import TableFold
from rftd.streams.events import batch, experiment, worker
from rftd.streams.events.catalogue import definitions
from rftd.streams.events.registry import DISPATCHER, PLANNER, TRAINER, Definition, Event
from rftd.streams.folds.run_state import RunState, partitions_of
from rftd.streams.log import topics
from rftd.streams.log.envelope import Head
from rftd.streams.log.fencing import LEAP, FenceView, Role
from rftd.streams.log.follower import Follower
from rftd.streams.log.shared_history import shared_history
from rftd.streams.log.start import beginning_of
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.log.writers import holder_source, source_of
from rftd.streams.memory import MemoryLog
from rftd.streams.portable.export import OutsideNames
from rftd.streams.verify.checker import verify

ROOT = Path(__file__).parents[4]
EXPERIMENT = UUID(int=77)
OWNED = [each for each in definitions() if each.owner and not each.commanded]
FREE = [each for each in definitions() if not each.owner and not each.anywhere]


def head(role: str, epoch: int, source: str = "") -> Head:
    """The attributes of what the owner of an epoch writes, as `fence` names it."""
    source = source or holder_source(role, UUID(int=abs(epoch)))
    return Head(
        id=UUID(int=1), type="x", version=1, experiment=EXPERIMENT, source=source, time_ns=0, role=role, epoch=epoch
    )


def fence(role: str, epoch: int, previous: int) -> experiment.Fence:
    return experiment.Fence(role=role, epoch=epoch, previous=previous, owner=UUID(int=abs(epoch)))


def some(definition: Definition) -> Event:
    """An event of the type; what it says does not matter here."""
    golden = json.loads((ROOT / f"tests/golden/events/{definition.name}.v{definition.version}.json").read_text())
    return definition.decode(bytes.fromhex(golden["value_hex"]))


@pytest.mark.parametrize("definition", OWNED, ids=lambda each: each.name)
def test_only_the_owner_writes_it_and_only_under_its_present_epoch(definition: Definition) -> None:
    place, event, fences = Partition(definition.stream, 0), some(definition), FenceView()
    other = next(role for role in (PLANNER, TRAINER) if role != definition.owner)
    assert not any(fences.admit(place, head(definition.owner, epoch), event) for epoch in (0, 1, 5))
    for role, epoch, previous in ((definition.owner, 2, 0), (other, 2, 0)):
        assert fences.admit(place, head(role, epoch), fence(role, epoch, previous))
    said = [("", 0), ("", 2), (other, 2), (definition.owner, 1), (definition.owner, 3), (definition.owner, 0)]
    assert not any(fences.admit(place, head(role, epoch), event) for role, epoch in said)
    assert fences.admit(place, head(definition.owner, 2), event)
    elsewhere = Partition(definition.stream, 1)
    assert not fences.admit(elsewhere, head(definition.owner, 2), event), "its fence is in another partition"
    assert not fences.admit(place, head(definition.owner, 2, "stranger"), event), "it is not its owner's"
    restored = FenceView(fences.owners())
    assert restored.admit(place, head(definition.owner, 2), event)
    assert not restored.admit(place, head(definition.owner, 2, "stranger"), event)


@pytest.mark.parametrize("definition", FREE, ids=lambda each: each.name)
def test_what_nobody_owns_is_written_without_a_role(definition: Definition) -> None:
    place, event, fences = Partition(definition.stream, 0), some(definition), FenceView()
    assert fences.admit(place, head("", 0), event)
    assert not fences.admit(place, head(TRAINER, 1), event)


def test_a_command_needs_no_lease_and_no_other_role_may_give_it() -> None:
    place, fences = Partition(topics.EXPERIMENTS, 0), FenceView()
    assert fences.admit(place, head("trainer", 1), fence("trainer", 1, 0))
    for definition in (each for each in definitions() if each.commanded):
        assert fences.admit(place, head("", 0), some(definition)), definition.name
        assert not fences.admit(place, head("trainer", 1), some(definition)), definition.name
        assert not fences.admit(place, head("controller", 1), some(definition)), definition.name


def test_an_invented_fence_has_no_effect() -> None:
    place, fences = Partition(topics.EXPERIMENTS, 0), FenceView()
    assert fences.admit(place, head("planner", 3), fence("planner", 3, 0))
    invented = [fence("planner", 4, 2), fence("planner", 3, 3), fence("planner", 2, 3), fence("planner", -1, 3)]
    invented.append(fence("planner", 4 + LEAP, 3))
    assert not any(fences.admit(place, head("planner", each.epoch), each) for each in invented)
    good = fence("planner", 4, 3)
    said = [("", 0), ("", 4), ("trainer", 4), ("planner", 3)]
    assert not any(fences.admit(place, head(role, epoch), good) for role, epoch in said)
    assert fences.epoch(place, Role(EXPERIMENT, "planner")) == 3


@pytest.mark.parametrize("role", ["controller", "planner", "dispatcher", TRAINER])
@pytest.mark.parametrize("midway", [False, True])
def test_a_fence_of_a_stranger_has_no_effect(role: str, midway: bool) -> None:
    place, fences = Partition(topics.EXPERIMENTS, 0), FenceView(midway=midway)
    owner = UUID(int=1)
    other = source_of("daemon" if role == TRAINER else "trainer", owner)
    for source in ("stranger", other, holder_source(role, UUID(int=2)), f"{holder_source(role, owner)}x"):
        assert not fences.admit(place, head(role, 1, source), fence(role, 1, 0)), source
    assert fences.epoch(place, Role(EXPERIMENT, role)) == 0
    assert fences.admit(place, head(role, 1), fence(role, 1, 0))


def test_who_begins_midway_believes_what_it_cannot_know() -> None:
    place, fences = Partition(topics.TASKS, 0), FenceView(midway=True)
    event = some(next(each for each in OWNED if each.owner == DISPATCHER))
    assert fences.admit(place, head("dispatcher", 7), event)
    assert not fences.admit(place, head("", 0), event)
    assert fences.admit(place, head("dispatcher", 9), fence("dispatcher", 9, 8))
    assert not fences.admit(place, head("dispatcher", 8), event)


PLANTED = (("", 0), ("", 1), ("trainer", 1), ("planner", 0), ("planner", 99))


@pytest.fixture(params=PLANTED, ids=lambda each: f"{each[0] or 'nobody'}-{each[1]}")
def planted(request: pytest.FixtureRequest) -> Iterator[tuple[SyntheticRun, SyntheticRun]]:
    """A run as it was, and the same with a plan and an end that nobody decided."""
    runs = [SyntheticRun(Recorder(), faults=False) for _ in range(2)]
    role, epoch = request.param
    for number, run in enumerate(runs):
        run.begin()
        run.warm_up()
        run.explore()
        if number:
            id = run.recorder.ids.new()
            plan = batch.BatchPlanned(batch=id, step=run.version + 1, stage=1, observed=(), decided_at_ns=1)
            run.recorder.write(plan, run.id, role=role, epoch=epoch)
            run.recorder.write(experiment.ExperimentFailed(code="X", reason="no"), run.id, role=role, epoch=epoch)
            run.recorder.ids, run.recorder.clock = runs[0].recorder.ids, runs[0].recorder.clock
    yield runs[0], runs[1]


@pytest.mark.anyio
async def test_an_ownerless_plan_is_void_on_every_path(planted: tuple[SyntheticRun, SyntheticRun]) -> None:
    run = planted[1]
    logs = [MemoryLog(), MemoryLog()]
    for log, each in zip(logs, planted, strict=True):
        await log.append(each.recorder.drafts)
    seen = []
    for log in logs:
        state = RunState(run.id)
        positions = {partition: 0 for partition in partitions_of(run.id)}
        follower = Follower(log, state, experiment=run.id, positions=positions, clock=ManualClock())
        await follower.catch_up()
        registry = Registry(log)
        await registry.catch_up()
        shared = await shared_history(log, run.id, 2)
        await beginning_of(log, run.id)
        entry = registry.entries[run.id]
        seen.append((state.spine.plans, state.spine.planned, state.spine.status, entry.status, shared.forked))
    assert seen[0] == seen[1]
    folded = [TableFold({}).take(each.recorder.records) for each in planted]
    assert (folded[1].applied, folded[1].void) == (folded[0].applied, folded[0].void + 2)
    voids = [(await verify(log)).experiments[0].void for log in logs]
    assert voids[1] == voids[0] + 2
    named = [OutsideNames(), OutsideNames()]
    feeds = [MetricsFeed(Metrics(version="1")), MetricsFeed(Metrics(version="1"))]
    for each, names, feed in zip(planted, named, feeds, strict=True):
        show(each.recorder.records, feed, FenceView())
        for record in each.recorder.records:
            names.take(record)
    assert named[0].spine.status == named[1].spine.status
    pages = [
        [
            each
            for each in feed.metrics.expose().splitlines()
            if b"records" not in each and not each.startswith(b"process_")
        ]
        for feed in feeds
    ]
    assert pages[0] == pages[1]


def test_the_page_says_whose_each_type_is() -> None:
    section = (ROOT / "docs" / "concepts.md").read_text().partition("## Roles and fences")[2].partition("\n## ")[0]
    said: dict[str, set[str]] = {}
    for role, names in re.findall(r"^\| ([^|`]+) \| [^|]+ \| (`[^|]+) \|$", section, re.MULTILINE):
        said[role.split(":")[0]] = set(re.findall(r"`([a-z_.]+)`", names))
    expected: dict[str, set[str]] = {}
    for each in definitions():
        if not each.anywhere:
            owner = each.owner + (", or a command while no run is under way" if each.commanded else "")
            expected.setdefault(owner or "nobody", set()).add(each.name)
    assert said == expected


def test_a_worker_announces_itself_without_a_lease() -> None:
    recorder = Recorder()
    id = recorder.ids.new()
    place = recorder.write(worker.WorkerStopped(worker=id, role="trainer", slot=-1), recorder.ids.new(), key=id)
    assert place.partition == partition_of(topics.WORKERS, id)
    assert TableFold({}).take(recorder.records).void == 0
