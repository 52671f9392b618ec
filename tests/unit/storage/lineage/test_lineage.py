"""Lineage of every kind of thing in one run, both ways, by every way to name it; on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import REPEAT, SyntheticRun, group_of

from rftd.ops.clock import ManualClock
from rftd.ops.errors import NotFoundError, UsageError
from rftd.ops.ids import derive
from rftd.storage.lineage import walk
from rftd.storage.lineage.finding import find
from rftd.storage.lineage.graph import Kind, LineageGraph
from rftd.storage.lineage.walk import lineage
from rftd.storage.projector.projector import Projector
from rftd.streams.events import experiment, step, task, weights
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.registry import Event
from rftd.streams.log.codec import decode
from rftd.streams.memory import MemoryLog

pytestmark = pytest.mark.anyio


@pytest.fixture
async def connection(run: SyntheticRun, either: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    await fill(run.recorder, either)
    async with either.connect() as connection:
        yield connection


async def fill(recorder: Recorder, engine: AsyncEngine) -> None:
    log = MemoryLog()
    for start in range(0, len(recorder.drafts), 500):
        await log.append(recorder.drafts[start : start + 500])
    projector = Projector(log, engine, clock=ManualClock())
    await projector.catch_up()
    await projector.close()


def kinds(graph: LineageGraph, direction: str) -> set[str]:
    links = graph.up if direction == "up" else graph.down
    by_id = {node.id: node.kind for node in graph.nodes}
    return {by_id[link.cause if direction == "up" else link.effect] for link in links}


def event_id(recorder: Recorder, kind: type[Event], number: int = 0) -> UUID:
    return [decode(record).head.id for record in recorder.records if isinstance(decode(record).event, kind)][number]


async def test_weights_go_back_to_tasks_and_to_the_weights_that_drew(
    connection: AsyncConnection, run: SyntheticRun
) -> None:
    graph = await lineage(connection, "small/weights/4", direction="up", depth=6, children=50)
    assert graph.root == "small/weights/4.0"
    assert graph.down == []
    assert kinds(graph, "up") == {"step", "batch", "experience", "rollout", "task", "weights", "experiment"}
    links = {(link.effect, link.what, link.cause) for link in graph.up}
    assert ("small/weights/4.0", "made by", "small/step/4.0") in links
    assert ("small/step/4.0", "executed", str(run.batches[3])) in links
    assert ("small/step/4.0", "trained from", "small/weights/3.0") in links
    items = [cause for effect, what, cause in links if what == "item" and effect == str(run.batches[3])]
    assert len(items) == 2 * REPEAT
    drawn = [link for link in graph.up if link.what.startswith("drawn by") and link.effect == items[0]]
    assert [link.cause for link in drawn] == ["small/weights/3.0"]
    assert drawn[0].what.startswith("drawn by, tokens 0-")
    assert "small/weights/2.0" in {node.id for node in graph.nodes}


async def test_the_base_is_where_it_ends(connection: AsyncConnection) -> None:
    graph = await lineage(connection, "small/weights/2", direction="up", depth=50)
    assert {"small/step/1.0", "small/weights/0.0"} <= {node.id for node in graph.nodes}
    assert graph.cut == []
    assert graph.more == []


async def test_what_became_of_a_rollout(connection: AsyncConnection, run: SyntheticRun) -> None:
    group = group_of(run.id, 0)
    rollout = derive(group, "rollout", 1)
    graph = await lineage(connection, str(rollout), direction="down", depth=5)
    assert graph.root == str(rollout)
    assert [link.what for link in graph.down[:4]] == ["left by", "item", "executed", "made by"]
    assert kinds(graph, "down") >= {"experience", "batch", "step", "weights", "eval"}


async def test_every_kind_has_two_directions(connection: AsyncConnection, run: SyntheticRun) -> None:
    group = group_of(run.id, 0)
    lease = event_of(run.recorder, task.TaskLeased).lease
    wanted = {
        str(run.id): (set(), {"task", "step", "checkpoint", "eval", "worker"}),
        str(group): ({"experiment"}, {"rollout"}),
        str(lease): ({"task", "worker"}, {"rollout"}),
        str(derive(group, "rollout", 0)): ({"task"}, {"experience"}),
        str(derive(derive(group, "rollout", 0), "experience")): ({"rollout", "weights"}, {"batch"}),
        str(run.batches[0]): ({"row"}, {"step"}),
        str(run.batches[2]): ({"experience"}, {"step"}),
        "small/step/3": ({"batch", "weights"}, {"weights"}),
        "small/weights/3": ({"step"}, {"experience", "eval", "step"}),
        "small/checkpoint/5": ({"weights"}, set()),
        "small/eval/3": ({"weights"}, set()),
        str(run.workers[0]): ({"experiment"}, {"lease"}),
        f"{run.batches[0]}/row/2": (set(), {"batch"}),
    }
    seen = set()
    for id, (up, down) in wanted.items():
        graph = await lineage(connection, id, depth=1)
        assert (kinds(graph, "up"), kinds(graph, "down")) == (up, down), id
        assert all(node.text and node.text != "not in the tables" for node in graph.nodes), id
        assert graph == await lineage(connection, graph.root, depth=1), "what is shown finds it again"
        seen.add(graph.nodes[0].kind)
    assert seen == {kind.value for kind in Kind}


def event_of(recorder: Recorder, kind: type) -> task.TaskLeased:
    return next(decode(record).event for record in recorder.records if isinstance(decode(record).event, kind))  # type: ignore[return-value]


async def test_a_failed_rollout_an_abandoned_batch_and_a_retired_experience_say_why(
    connection: AsyncConnection, run: SyntheticRun
) -> None:
    graph = await lineage(connection, "small/task/1.6", direction="down", depth=3)
    text = "\n".join(node.text for node in graph.nodes)
    assert "failed with RFTD-WRK-003" in text
    assert "retired: stale" in text
    [abandoned] = [node for node in graph.nodes if node.id == str(run.abandoned)]
    assert "abandoned: no" in abandoned.text
    assert str(run.zombie) not in {node.id for node in graph.nodes}


async def test_children_are_bounded_and_counted(connection: AsyncConnection, run: SyntheticRun) -> None:
    graph = await lineage(connection, str(run.batches[2]), direction="up", depth=1, children=3)
    assert len(graph.up) == 3
    assert [(more.node, more.kind, more.count, more.exact) for more in graph.more] == [
        (str(run.batches[2]), "experience", 2 * REPEAT - 3, True)
    ]
    graph = await lineage(connection, "small/weights/2", direction="down", depth=1, children=2)
    assert [(more.kind, more.count) for more in graph.more] == [("experience", 2 * REPEAT - 2)]


async def test_depth_bounds_and_names_where_it_stopped(connection: AsyncConnection) -> None:
    none = await lineage(connection, "small", depth=0)
    assert [node.kind for node in none.nodes] == ["experiment"]
    assert none.up == none.down == []
    one = await lineage(connection, "small/weights/4", direction="up", depth=1)
    assert one.cut == ["small/step/4.0"]


async def test_a_bound_within_a_level_says_so(connection: AsyncConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = await lineage(connection, "small", direction="down", depth=6)
    assert whole.bound is None
    assert len(whole.nodes) > 60
    for bound in (1, 7, 30, 61):
        monkeypatch.setattr(walk, "NODES", bound)
        some = await lineage(connection, "small", direction="down", depth=6, children=1 if bound == 1 else bound)
        assert some.bound == bound
        assert len(some.nodes) == bound
        shown = [node.id for node in some.nodes]
        assert some.cut
        assert set(some.cut) <= set(shown)
        links = {(link.cause, link.effect, link.what) for link in some.down}
        assert links <= {(link.cause, link.effect, link.what) for link in whole.down}
        # Whatever is not cut has all its neighbours.
        open = {link.cause for link in whole.down if (link.cause, link.effect, link.what) not in links}
        assert open.intersection(shown) <= {*some.cut, *(more.node for more in some.more)}


async def test_events_are_found_by_what_they_announce(connection: AsyncConnection, run: SyntheticRun) -> None:
    published = event_id(run.recorder, weights.WeightsPublished, 2)
    assert (await lineage(connection, str(published), depth=0)).root == "small/weights/3.0"
    committed = event_id(run.recorder, CheckpointCommitted)
    assert (await lineage(connection, str(committed), depth=0)).root == "small/checkpoint/2.0"


async def test_ids_by_their_beginning(connection: AsyncConnection, run: SyntheticRun) -> None:
    group = group_of(run.id, 3)
    assert (await find(connection, group.hex[:8])).uuid == group
    assert (await find(connection, str(group)[:13])).uuid == group
    with pytest.raises(UsageError, match="names several things") as several:
        await find(connection, run.id.hex[:8])
    assert str(run.workers[0]) in str(several.value.fix)
    assert "(worker)" in str(several.value.fix)


@pytest.mark.parametrize(
    ("wanted", "error", "words"),
    [
        ("nobody", NotFoundError, "no experiment 'nobody'"),
        ("00000000-0000-7000-8000-00000000dead", NotFoundError, "nothing has the id"),
        ("nobody/step/1", NotFoundError, "no experiment 'nobody'"),
        ("small/step/99", NotFoundError, "no small/step/99"),
        ("small/step/3.7", NotFoundError, "no small/step/3.7"),
        ("small/task/1.99", NotFoundError, "not given out"),
        ("small/task/3", UsageError, "which stage"),
        ("small/mood/3", UsageError, "has a lineage"),
        ("small/step/x", UsageError, "has a lineage"),
        ("small/step/", UsageError, "has a lineage"),
        ("small/eval/1", NotFoundError, "no eval of 1"),
        ("xyz/row/1", NotFoundError, "no xyz/row/1"),
        ("small/step/999999999999999999", NotFoundError, "no small/step"),
        ("%", NotFoundError, "no experiment '%'"),
        ("1234567", NotFoundError, "no experiment '1234567'"),
    ],
)
async def test_what_names_nothing(connection: AsyncConnection, wanted: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        await lineage(connection, wanted)


async def test_generations_and_forks(either: AsyncEngine) -> None:
    """A trainer that took version 2 up again, and a child that shares the history up to version 2."""
    recorder = Recorder()
    run = SyntheticRun(recorder, faults=False, steps=1)
    run.begin()
    run.warm_up()
    started = step.GenerationStarted(generation=1, version=2, checkpoint="/jobs/global_step_2")
    recorder.write(started, run.id, role="trainer")
    run.explore()
    run.explore()
    run.plan(stage=1, take=2 * REPEAT)
    run.complete(stage=1, items=2 * REPEAT, generation=1)
    child = recorder.ids.new()
    spec = event_of(recorder, experiment.ExperimentSubmitted).spec  # type: ignore[attr-defined]
    recorder.write(experiment.ExperimentSubmitted(spec=spec), child)
    forked = experiment.ExperimentForked(
        parent=run.id, at_step=2, checksum="c2.0", stage=0, first_versions=(0,), decided_at_ns=0
    )
    recorder.write(forked, child)
    await fill(recorder, either)
    async with either.connect() as connection:
        up = await lineage(connection, "small@1/step/3", direction="up", depth=1)
        causes = {(link.what, link.cause) for link in up.up}
        assert ("resumed from", f"{run.id}/checkpoint/2.0") in causes
        assert ("trained from", f"{run.id}/weights/2.0") in causes
        down = await lineage(connection, "small@1/checkpoint/2", direction="down", depth=1)
        assert [link.effect for link in down.down] == [f"{run.id}/step/3.1"]
        of = await lineage(connection, str(child), direction="up", depth=1)
        assert [(link.what, link.cause) for link in of.up] == [("forked from", f"{run.id}/weights/2.0")]
        into = await lineage(connection, "small@1/weights/2", direction="down", depth=1)
        assert ("forked from", str(child)) in {(link.what, link.effect) for link in into.down}
