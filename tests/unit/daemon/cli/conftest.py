"""A real daemon's API on a loopback port, in a thread, and the command line beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from synthetic.daemon import experiment_files
from synthetic.daemon.command_line import Rftd, Said, Served
from synthetic.daemon.house import open_house
from synthetic.daemon.stranger import Stranger, stranger_at_work

from rftd.daemon.cli import main
from rftd.ops.http_server import bind, serving_http, url_of


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The API over one complete run named `small`."""
    with _at_work(tmp_path_factory.mktemp("house"), token=None) as served:
        yield served


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same, of a daemon whose token is `right`."""
    with _at_work(tmp_path_factory.mktemp("guarded"), token="right") as served:
        yield served


@contextmanager
def _at_work(folder: Path, *, token: str | None) -> Iterator[Served]:
    up = threading.Event()
    told: dict[str, object] = {}

    async def serve() -> None:
        stop = told["stop"] = asyncio.Event()
        told["loop"] = asyncio.get_running_loop()
        bound = bind("127.0.0.1", 0)
        async with open_house(folder, token=token) as house, serving_http(house.app, bound):
            told["served"] = Served(url_of(bound), house)
            up.set()
            await stop.wait()
        bound.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert up.wait(30)
    served, loop, stop = told["served"], told["loop"], told["stop"]
    assert isinstance(served, Served)
    assert isinstance(loop, asyncio.AbstractEventLoop)
    assert isinstance(stop, asyncio.Event)
    yield served
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)


@pytest.fixture
def rftd(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Rftd:
    """Runs one command line against the daemon, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RFTD_SERVER", served.url)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("RFTD_DATA", raising=False)

    def run(*arguments: str) -> Said:
        status = main(list(arguments))
        said = capsys.readouterr()
        return Said(status, said.out, said.err)

    return run


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """A server on a loopback port."""
    with stranger_at_work() as at_work:
        yield at_work


@pytest.fixture
def experiment_file(tmp_path: Path) -> Path:
    """An experiment file with nothing wrong in it."""
    path = tmp_path / "exp.yaml"
    path.write_text(experiment_files.TEXT)
    return path
