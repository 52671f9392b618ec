"""W&B's library sends a run to a service: it has what `rftd steps` shows, whatever the service answers meanwhile."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from synthetic.tracking.tracked import Deaths, Shown, as_shown, expected, follow, follow_and_die, written
from synthetic.tracking.wandb_files import step_and_figures

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.cursor import CursorFile
from rftd.workers.tracking.point import ROLES

KEY: Final = "a" * 40
HISTORY: Final = "wandb-history.jsonl"
Trouble = Callable[[str], int | None]
"""By the path of a request: the status that refuses it, 0 for an end without an answer, None if it is done."""


class StandIn:
    """The runs that were sent, by id."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.address = ""
        self.history: dict[str, dict[int, str]] = {}
        """The lines of each run by number."""
        self.notes: dict[str, str] = {}
        self._lock = threading.Lock()

    def asked(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The answer to a question about runs."""
        name = query.split("(")[0].split("{")[0]
        entity = {"id": "e", "name": "me"}
        if "RunResumeStatus" in name:
            return {"model": {"id": "p", "name": "p", "entity": entity, "bucket": self._bucket(variables["name"])}}
        if "UpsertBucket" in name:
            run = variables["name"]
            with self._lock:
                self.history.setdefault(run, {})
                self.notes[run] = variables.get("notes") or self.notes.get(run, "")
                count = len(self.history[run])
            project = {"id": "p", "name": variables["project"], "entity": entity}
            bucket = {"id": run, "name": run, "displayName": run, "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": bucket | {"historyLineCount": count}, "inserted": count == 0}}
        if "CreateRunFiles" in name:
            files = [{"name": file, "uploadUrl": f"{self.address}/storage/{file}"} for file in variables["files"]]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        return {}

    def take(self, run: str, files: dict[str, Any]) -> None:
        """Keeps the lines of a run's history."""
        sent = files.get(HISTORY)
        if sent is not None:
            with self._lock:
                lines = self.history.setdefault(run, {})
                for number, line in enumerate(sent["content"], sent["offset"]):
                    lines[number] = line

    def _bucket(self, run: str) -> dict[str, Any] | None:
        lines = self.history.get(run)
        if lines is None:
            return None
        last = [lines[max(lines)]] if lines else []
        return {
            **{"id": run, "name": run, "displayName": run, "config": "{}", "summaryMetrics": "{}", "tags": []},
            **{"logLineCount": 0, "eventsLineCount": 0, "eventsTail": "[]", "notes": self.notes.get(run, "")},
            **{"historyLineCount": len(lines), "historyTail": json.dumps(last), "wandbConfig": "{}"},
        }

    def shown(self) -> list[Shown]:
        """Every figure of every run, as often as it was kept."""
        figures = []
        for run, lines in self.history.items():
            last = run.rpartition("-")[2]
            role = last if last in ROLES else ""
            for line in lines.values():
                step, row = step_and_figures(json.loads(line))
                figures += [as_shown("wandb", role, step, name, float(value)) for name, value in row.items()]
        return sorted(figures, key=lambda figure: (figure.run, figure.step, figure.name))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: StandIn

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        trouble = type(self).service.trouble(self.path)
        if trouble == 0:
            self.close_connection = True
            return
        self._send(trouble or 200, {} if trouble else self._work(body))

    def _work(self, body: bytes) -> dict[str, Any]:
        service = type(self).service
        if self.path.startswith("/graphql"):
            question = json.loads(body)
            return {"data": service.asked(question["query"], question.get("variables") or {})}
        if self.path.endswith("/file_stream"):
            service.take(self.path.split("/")[-2], json.loads(body).get("files") or {})
        return {}

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def stand_in(trouble: Trouble = lambda path: None) -> Iterator[StandIn]:
    """The service, until the block ends."""
    service = StandIn(trouble)
    handler = type("OfThisTest", (_Handler,), {"service": service})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        service.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()


pytest.importorskip("wandb")
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)


def tracker_of(address: str) -> TrackerSpec:
    return TrackerSpec(kind="wandb", args={"base_url": address, "api_key": KEY})


async def test_the_service_has_every_figure_once(tmp_path: Path) -> None:
    run = written(tmp_path)
    log = MemoryLog()
    with stand_in() as service:
        await follow_and_die(log, run, tracker_of(service.address), Deaths([]), portion=120)
        assert service.shown() == await expected("wandb", run, log)
        assert ": completed" in service.notes[f"{run.id}-trainer"]


async def test_a_service_that_refuses_or_ends_before_it_answers_loses_and_doubles_nothing(tmp_path: Path) -> None:
    # The library waits for seconds after each, whatever it is told: MLflow's test has 500 of them.
    due: list[int] = [429, 0, 503, 0, 429, 503]

    def troubled(path: str) -> int | None:
        return due.pop() if due and path.endswith("file_stream") else None

    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with stand_in(troubled) as service:
        await follow(log, run, tracker_of(service.address))
        assert service.shown() == await expected("wandb", run, log)
    assert due == []


async def test_a_service_that_is_away_at_the_beginning_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    clock = ManualClock()
    back_s = clock.monotonic_s() + 0.5
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with stand_in(lambda path: 503 if clock.monotonic_s() < back_s else None) as service:
        await follow(log, run, tracker_of(service.address), clock=clock)
        assert service.shown() == await expected("wandb", run, log)
    assert clock.monotonic_s() >= back_s, "the first attempt was in vain"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_wrong_key_ends_the_tracker_and_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "5")
    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with stand_in(lambda path: status) as service, pytest.raises(ConfigError) as refusal:
        await follow(log, run, tracker_of(service.address))
    assert "WANDB_API_KEY" in str(refusal.value)
    assert KEY not in str(refusal.value)
    cursor = CursorFile(tmp_path, "wandb", str(run.id)[:8]).read()
    assert cursor.error and KEY not in cursor.error
