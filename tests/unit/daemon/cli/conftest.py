"""A real daemon's API on a loopback port, in a thread, and the command line beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic.daemon import experiment_files
from synthetic.daemon.command_line import Rftd, Said, Served
from synthetic.daemon.served_daemon import served_daemon
from synthetic.daemon.stranger import Stranger, stranger_at_work

from rftd.daemon.cli.cli import main


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The API over one complete run named `small`."""
    with served_daemon(tmp_path_factory.mktemp("parts")) as one:
        yield one


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same, of a daemon whose token is `right`."""
    with served_daemon(tmp_path_factory.mktemp("guarded"), token="right") as one:
        yield one


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
