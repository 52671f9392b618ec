"""SwanLab's library sends a run to a service: it has what `rftd steps` shows, whatever the service answers."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from synthetic.tracking.tracked import Deaths, Shown, as_shown, expected, follow, follow_and_die, written

from rftd.ops.errors import ConfigError
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.cursor import CursorFile

KEY: Final = "swanlab-key-of-a-test"
Trouble = Callable[[str], int | None]
"""By the path of a request: the status of its refusal, 0 for an end without an answer, None if it is done."""
_BEGUN: Final = "2026-01-01T00:00:00.000Z"
_GROUP: Final = {"username": "me"}
_COUNTS: Final = {"experiments": 0, "contributors": 1, "collaborators": 0, "clones": 0}


class SwanLabStandIn:
    """The runs that were sent, by id."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.address = ""
        self.roles: dict[str, str] = {}
        """The job type of each run."""
        self.values: dict[tuple[str, int, str], float] = {}
        """The figures by run, step and name."""
        self.changed: list[tuple[str, int, str]] = []
        """Figures that came again with another value."""
        self.states: dict[str, str] = {}
        self.config: dict[str, Any] = {}
        self.keys: set[str] = set()
        self._lock = threading.Lock()

    def work(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """The status and the answer of a request."""
        parts = path.strip("/").split("/")[1:]
        with self._lock:
            match method, *parts:
                case "POST", "login", "api_key":
                    return 200, {"sid": "s", "expiredAt": "2999-01-01T00:00:00.000Z", "userInfo": {"username": "me"}}
                case "GET", "project", _, name:
                    group = {"group": _GROUP, "_count": _COUNTS, "visibility": "PRIVATE", "version": 1}
                    return 200, {"cuid": "p", "name": name, "path": f"/me/{name}", **group}
                case "POST", "project", _, _, "experiment":
                    run = body["cuid"]
                    status = 200 if run in self.roles else 201
                    self.roles.setdefault(run, body.get("job", ""))
                    return status, {"cuid": run, "slug": run, "name": body["name"], "createdAt": _BEGUN}
                case "GET", "house", "metrics", "summaries", _, run:
                    return 200, {"log": [], "media": [], "scalar": self._summary(run)}
                case "POST", "house", "metrics":
                    self._take(body)
                case "PUT", "project", _, _, "runs", run, "state":
                    self.states[run] = body["state"]
                case "PUT", "project", _, _, "runs", run, "profile" if "config" in body:
                    self.config[run] = body["config"]
        return 200, {}

    def _summary(self, run: str) -> list[dict[str, Any]]:
        newest: dict[str, int] = {}
        for known, step, name in self.values:
            if known == run:
                newest[name] = max(step, newest.get(name, step))
        return [{"key": name, "step": step} for name, step in newest.items()]

    def _take(self, body: dict[str, Any]) -> None:
        for metric in body["metrics"] if body["type"] == "scalar" else ():
            place = (body["experimentId"], metric["index"], metric["key"])
            value = float(metric["data"])
            if repr(self.values.setdefault(place, value)) != repr(value):
                self.changed.append(place)

    def shown(self) -> list[Shown]:
        """Every figure of every run."""
        figures = [
            as_shown("swanlab", self.roles[run], step, name, value) for (run, step, name), value in self.values.items()
        ]
        return sorted(figures, key=lambda figure: (figure.run, figure.step, figure.name))


class _SwanLabHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: SwanLabStandIn

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""

    def _answer(self, method: str) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        service = type(self).service
        if "authorization" in self.headers:
            service.keys.add(self.headers["authorization"])
        path = self.path.partition("?")[0]
        trouble = service.trouble(path)
        if trouble == 0:
            self.close_connection = True
            return
        status, answer = (trouble, {}) if trouble else service.work(method, path, json.loads(data) if data else None)
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def swanlab_stand_in(trouble: Trouble = lambda path: None) -> Iterator[SwanLabStandIn]:
    """The service, until the block ends."""
    service = SwanLabStandIn(trouble)
    handler = type("OfThisTest", (_SwanLabHandler,), {"service": service})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        service.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()


pytest.importorskip("swanlab")
pytestmark = pytest.mark.anyio
ONLINE = TrackerSpec(kind="swanlab")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in a variable, and a home in which nobody is logged in."""
    monkeypatch.delenv("SWANLAB_MODE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWANLAB_API_KEY", KEY)


def sent_to(service: SwanLabStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWANLAB_API_HOST", "SWANLAB_WEB_HOST"):
        monkeypatch.setenv(name, service.address)


async def test_the_service_has_every_figure_and_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with swanlab_stand_in() as service:
        sent_to(service, monkeypatch)
        await follow(log, run, ONLINE)
        assert service.shown() == await expected("swanlab", run, log)
    assert service.keys == {KEY}
    assert set(service.states.values()) == {"FINISHED"}
    remarks = service.config[f"{run.id}-trainer"]["rftd_remarks"]["value"]
    assert remarks[0].endswith(": started")
    assert any(remark.endswith(": completed") for remark in remarks)


async def test_a_follower_that_dies_loses_and_changes_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    deaths = Deaths(random.Random(6).sample(range(1, 40), 5))
    with swanlab_stand_in() as service:
        sent_to(service, monkeypatch)
        await follow_and_die(log, run, ONLINE, deaths, portion=60)
        assert deaths.count == 5
        assert service.shown() == await expected("swanlab", run, log)
    assert not service.changed


async def test_a_service_that_refuses_or_ends_before_it_answers_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    due: list[int] = [429, 0, 503, 0, 429, 503]

    def troubled(path: str) -> int | None:
        return due.pop() if due and path.endswith("/house/metrics") else None

    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with swanlab_stand_in(troubled) as service:
        sent_to(service, monkeypatch)
        await follow(log, run, ONLINE)
        assert service.shown() == await expected("swanlab", run, log)
    assert due == []
    assert not service.changed


@pytest.mark.parametrize("status", [401, 403])
async def test_a_wrong_key_ends_the_tracker_and_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with swanlab_stand_in(lambda path: status) as service:
        sent_to(service, monkeypatch)
        with pytest.raises(ConfigError) as refusal:
            await follow(log, run, ONLINE)
    assert "SWANLAB_API_KEY" in str(refusal.value)
    assert KEY not in str(refusal.value)
    assert KEY not in CursorFile(tmp_path, "swanlab", str(run.id)[:8]).read().error
