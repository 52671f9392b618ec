"""What every launcher keeps: it never waits, and a worker is pending, running or ended, known by its order's id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from synthetic.worlds.launchers import ByRoleWorld, LauncherWorld, LocalWorld, SlowWorld, order_of

from rftd.workers.hosts.by_role import ExecutorByRole
from rftd.workers.hosts.executor import NO_WORKER, Executor, Handle, OpeningExecutor, WorkerOrder

WORLDS: dict[str, Callable[[Path], LauncherWorld]] = {"local": LocalWorld, "slow": SlowWorld, "by_role": ByRoleWorld}


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> LauncherWorld:
    return WORLDS[request.param](tmp_path)


@pytest.fixture
def started(world: LauncherWorld) -> Iterator[list[Handle]]:
    """Whatever a test puts here has ended after it."""
    handles: list[Handle] = []
    yield handles
    for handle in handles:
        handle.kill()
    world.until(lambda: all(handle.exit_code() is not None for handle in handles))


def test_a_worker_is_pending_then_runs_then_ends(world: LauncherWorld, started: list[Handle], tmp_path: Path) -> None:
    order = order_of(tmp_path)
    handle = world.executor.start(order)
    started.append(handle)
    assert handle.exit_code() is None
    world.until(lambda: handle.pid is not None)
    assert handle.waits is None
    assert world.executor.lives(world.started(order, handle)) is True
    handle.kill()
    world.until(lambda: handle.exit_code() is not None)
    assert handle.exit_code() == -9
    handle.kill()
    handle.terminate()


def test_one_that_is_given_up_at_once_never_stays(world: LauncherWorld, started: list[Handle], tmp_path: Path) -> None:
    handle = world.executor.start(order_of(tmp_path))
    started.append(handle)
    handle.terminate()
    world.until(lambda: handle.exit_code() is not None)


def test_the_next_launcher_takes_over_what_still_lives(
    world: LauncherWorld, started: list[Handle], tmp_path: Path
) -> None:
    order = order_of(tmp_path)
    handle = world.executor.start(order)
    started.append(handle)
    world.until(lambda: handle.pid is not None)
    announced = world.started(order, handle)
    adopted = world.another().adopt(order, announced)
    assert adopted is not None
    world.until(lambda: adopted.pid is not None)
    assert adopted.pid == handle.pid
    assert adopted.exit_code() is None
    adopted.kill()
    world.until(lambda: adopted.exit_code() is not None)
    late = world.another().adopt(order, announced)
    world.until(lambda: late is None or late.exit_code() is not None)


@pytest.mark.parametrize("make", [LocalWorld, ByRoleWorld])
def test_the_next_launcher_finds_what_has_not_joined_yet(make: type[LocalWorld], tmp_path: Path) -> None:
    """By the mark of its place, with the id of its order; that of another daemon's folder is no business of this."""
    world = make(tmp_path)
    order = order_of(tmp_path)
    handle = world.executor.start(order)
    try:
        world.until(lambda: handle.pid is not None)
        nobody = order_of(tmp_path, "explorer", 0)
        unknown = msgspec.structs.replace(order, worker=NO_WORKER)
        later = world.another()
        world.until(lambda: found(world, later, unknown, nobody) == [order.worker, None])
        (tmp_path / "other").mkdir()
        assert found(world, make(tmp_path / "other").executor, unknown) == [None]
        assert isinstance(later, OpeningExecutor)
        [search] = later.opening([unknown])
        world.until(lambda: search.over)
        assert search.waits is None
        assert search.adopt(unknown) is None, "it is another one's id"
        adopted = search.adopt(order)
        assert adopted is not None
        assert (adopted.pid, adopted.exit_code()) == (handle.pid, None)
        adopted.kill()
        world.until(lambda: adopted.exit_code() is not None)
        assert search.adopt(order) is None
        assert found(world, later, unknown) == [None]
    finally:
        handle.kill()
        world.until(lambda: handle.exit_code() is not None)


def found(world: LauncherWorld, executor: Executor, *orders: WorkerOrder) -> list[object]:
    """The ids of the workers that a search finds in these places."""
    assert isinstance(executor, OpeningExecutor)
    searches = executor.opening(orders)
    world.until(lambda: all(search.over for search in searches))
    return [search.worker(order) for search, order in zip(searches, orders, strict=True)]


def test_each_role_has_a_launcher_of_its_own(tmp_path: Path) -> None:
    """One that takes its time to place explorers keeps no trainer waiting."""
    slow, local = SlowWorld(tmp_path), LocalWorld(tmp_path)
    both = ExecutorByRole({"explorer": slow.executor, "trainer": local.executor})
    explorer, trainer = order_of(tmp_path, "explorer", 0), order_of(tmp_path)
    placed, begun = both.start(explorer), both.start(trainer)
    local.until(lambda: begun.pid is not None)
    try:
        assert placed.pid is None
        assert placed.waits is not None
        searches = both.opening([explorer, trainer])
        assert searches[0].over, "a launcher that finds nobody has nobody to look for"
        local.until(lambda: searches[1].over)
        assert [each.worker(order) for each, order in zip(searches, (explorer, trainer), strict=True)] == [
            None,
            trainer.worker,
        ]
        assert both.lives(local.started(trainer, begun)) is True
        assert both.lives(slow.started(explorer, placed)) is True
        assert both.host().trainers == local.executor.host()
        assert both.clear(explorer) is None
    finally:
        begun.kill()
        local.until(lambda: begun.exit_code() is not None)
    cleared = both.clear(trainer)
    assert cleared is not None
    local.until(lambda: cleared.exit_code() == 0)
