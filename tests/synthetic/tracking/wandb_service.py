"""A stand-in for the service of Weights & Biases on a loopback port: what its library sends of runs is kept in memory.

It answers the few questions that the library asks before, while and after it sends a run. As the real one does, it
keeps each line of a run's history by its number, so that a line that is sent again changes nothing.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from synthetic.tracking.tracked import Shown, as_shown
from synthetic.tracking.wandb_files import step_and_figures

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
