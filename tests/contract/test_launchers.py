"""What every launcher keeps: it never waits, and a worker is pending, running or ended, known by its order's id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from synthetic.worlds.launchers import LauncherWorld, LocalWorld, SlowWorld, order_of

from rftd.workers.launcher.executor import NO_WORKER, Handle, OpeningExecutor

WORLDS: dict[str, Callable[[Path], LauncherWorld]] = {"local": LocalWorld, "slow": SlowWorld}


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


def test_the_next_local_launcher_finds_what_has_not_joined_yet(tmp_path: Path) -> None:
    """By the mark of its place, with the id of its order; that of another daemon's folder is no business of this."""
    world = LocalWorld(tmp_path)
    order = order_of(tmp_path)
    handle = world.executor.start(order)
    try:
        world.until(lambda: handle.pid is not None)
        nobody = order_of(tmp_path, "explorer", 0)
        unknown = msgspec.structs.replace(order, worker=NO_WORKER)
        later = world.another()
        assert isinstance(later, OpeningExecutor)
        world.until(lambda: later.opening([unknown, nobody]) == [order])
        (tmp_path / "other").mkdir()
        elsewhere = LocalWorld(tmp_path / "other").executor
        assert isinstance(elsewhere, OpeningExecutor)
        assert elsewhere.opening([unknown]) == []
        adopted = later.adopt_opening(order)
        assert adopted is not None
        assert (adopted.pid, adopted.exit_code()) == (handle.pid, None)
        adopted.kill()
        world.until(lambda: adopted.exit_code() is not None)
        assert later.adopt_opening(order) is None
        assert later.opening([unknown]) == []
    finally:
        handle.kill()
        world.until(lambda: handle.exit_code() is not None)
