"""Whoever waits for a process that is alive goes on waiting and says so; only a dead process is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest
from synthetic.daemon.served_daemon import served_daemon

from rftd.daemon.cli import living_wait
from rftd.daemon.cli.living_wait import EVERY_S, run_to_end
from rftd.daemon.cli.settings import Settings
from rftd.daemon.demo.demo import STARTS, Questions, follow_progress
from rftd.daemon.demo.progress import Progress
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.client.host import DaemonHost
from rftd.daemon.stack.process import ServerProcess, held
from rftd.ops.clock import ManualClock
from rftd.ops.errors import NotFoundError, UnreachableError, WaitTimeoutError

LONG_S = 600.0
LATE = WaitTimeoutError("no answer within 30 s")
SERVED = Settings(server="http://127.0.0.1:1")


class Host:
    """A daemon that lives, unless it is said to be dead."""

    pid = 4711

    def __init__(self, settings: Settings = SERVED) -> None:
        self.settings = settings
        self.dead = False
        self.tended = 0

    def tend(self) -> None:
        self.tended += 1
        if self.dead:
            raise UnreachableError("the daemon ended with status 1")


class Talk:
    """Questions on a clock of their own, and what a person was told meanwhile."""

    def __init__(self, host: Host) -> None:
        self.clock = ManualClock()
        self.told: list[str] = []
        self.questions = Questions(
            host,
            timeout_s=30.0,
            say=self.told.append,
            monotonic_s=self.clock.monotonic_s,
            sleep=self.clock.advance,
        )

    def ask_late(self, error: Exception, *, late_s: float) -> str:
        """The answer to a question that ends with `error` for so long."""
        until_s = self.clock.monotonic_s() + late_s

        def question(client: Client) -> str:
            if self.clock.monotonic_s() < until_s:
                raise error
            return client.url

        return self.questions.ask(question)


@pytest.mark.parametrize(
    "error",
    [
        LATE,
        UnreachableError("no broker answers"),
        httpx.ReadTimeout("late"),
        ConnectionResetError("reset"),
        httpx.HTTPStatusError("away", request=httpx.Request("GET", "/"), response=httpx.Response(503)),
    ],
)
def test_a_living_daemon_is_waited_for_however_late_it_is(error: Exception) -> None:
    talk = Talk(Host())
    assert talk.ask_late(error, late_s=LONG_S) == SERVED.server
    assert len(talk.told) == pytest.approx(LONG_S / EVERY_S, abs=2)
    assert talk.told[0].startswith("the daemon has not answered for 30 s (")
    assert talk.told[0].endswith("): process 4711 is alive, so this waits on")
    assert "no answer within 30 s" in talk.told[0] or error is not LATE


def test_what_a_daemon_refuses_for_good_is_an_error() -> None:
    talk = Talk(Host())
    assert talk.ask_late(NotFoundError("no experiment"), late_s=30.0) == SERVED.server
    with pytest.raises(NotFoundError):
        talk.ask_late(NotFoundError("no experiment"), late_s=LONG_S)


def test_a_daemon_that_dies_whenever_it_is_started_is_an_error() -> None:
    host = Host()
    host.dead = True
    with pytest.raises(UnreachableError, match="ended with status 1"):
        Talk(host).questions.ask(lambda client: client.url)
    assert host.tended == STARTS


def test_progress_asks_for_what_is_cheap_and_for_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    send = httpx.Client.send

    def record(client: httpx.Client, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        paths.append(request.url.path)
        return send(client, request, stream=stream)

    monkeypatch.setattr(httpx.Client, "send", record)
    written: list[str] = []
    with served_daemon(tmp_path) as served:
        talk = Talk(Host(Settings(server=served.url)))
        progress = Progress(written.append, width=lambda: None, monotonic_s=talk.clock.monotonic_s)
        follow_progress(talk.questions, "small", progress, sleep=talk.clock.advance)
    assert paths == ["/v1/experiments/small/summary", "/v1/experiments/small/evals"]
    assert "held-out 0.75" in "".join(written)


@pytest.mark.e2e
def test_a_daemon_that_is_not_ready_is_waited_for_until_what_it_needs_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(living_wait, "EVERY_S", 0.0)
    told: list[str] = []

    def check() -> None:
        if any("(log" in line for line in told):
            raise UnreachableError("Kafka ended by itself")

    nowhere = ("--kafka", "127.0.0.1:1")
    host = DaemonHost(tmp_path / "data", tmp_path / "daemon.log", nowhere, say=told.append, check=check)
    with pytest.raises(UnreachableError, match="Kafka ended"):
        host.__enter__()
    assert f"process {host.pid} is alive" in told[-1]
    assert "stopped before it was ready" in (tmp_path / "daemon.log").read_text(), "it is not left behind"


@pytest.mark.e2e
def test_a_daemon_that_ends_while_it_starts_is_an_error_at_once(tmp_path: Path) -> None:
    host = DaemonHost(tmp_path / "data", tmp_path / "daemon.log", ("--no-such-option",))
    with pytest.raises(UnreachableError, match="the daemon ended with status 2"):
        host.__enter__()


def test_a_server_that_is_late_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(living_wait, "EVERY_S", 0.0)
    process = ServerProcess(tmp_path, "Test")
    process.spawn([sys.executable, "-c", "import signal; signal.pause()"], cwd=tmp_path, environ={})
    answers = iter([False, False, False, True])
    process.wait_ready(lambda: next(answers))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3
    assert f"process {process.pid} is alive, so this waits on" in told[0]
    process.kill()
    with pytest.raises(UnreachableError, match="Test ended by itself"):
        process.living("by itself")


def test_a_program_that_is_late_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(living_wait, "EVERY_S", 0.001)  # no interpreter starts in a millisecond
    done = run_to_end([sys.executable, "-c", "print(input())"], "it has been in the making", text="word\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "word\n", "")
    assert "it has been in the making for 0 s: process" in capsys.readouterr().err


def test_who_holds_a_lock_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(living_wait, "EVERY_S", 0.0)
    rounds = 0
    with held(tmp_path / "lock") as _:
        entering = held(tmp_path / "lock")

        def count(_: float) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr("time.sleep", count)
        with pytest.raises(KeyboardInterrupt):
            entering.__enter__()
    assert capsys.readouterr().err.count("another process has had the lock") == 3
