"""A real MLflow server has what `rftd steps` shows, whenever the follower dies, and while the server is away."""

from __future__ import annotations

import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from synthetic.tracking.mlflow_runs import runs_of, shown_at
from synthetic.tracking.tracked import Deaths, expected, follow, follow_and_die, written

from rftd.streams.backends.memory import MemoryLog
from rftd.streams.tracking import TrackerSpec

pytest.importorskip("mlflow")
pytestmark = pytest.mark.anyio


async def test_the_server_has_every_figure_once_whenever_the_follower_dies(uri: str, tmp_path: Path) -> None:
    run = written(tmp_path)
    tracker = TrackerSpec(kind="mlflow", args={"uri": uri})
    log = MemoryLog()
    deaths = Deaths(random.Random(2).sample(range(1, 24), 10))
    await follow_and_die(log, run, tracker, deaths, portion=60)
    assert deaths.count == 10
    assert shown_at(uri, str(run.id)) == await expected("mlflow", run, log)
    trainer = runs_of(uri, str(run.id))["trainer"]
    assert (trainer.info.run_name, trainer.info.status, trainer.data.params["name"]) == (
        *("small_trainer", "FINISHED"),
        "small",
    )


class Refusing(BaseHTTPRequestHandler):
    """Answers some requests with 429 and 503, and hands the others to the server behind it."""

    uri = ""
    refusals = 0

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if type(self).refusals > 0:
            type(self).refusals -= 1
            status = 429 if self.refusals % 2 else 503
            content = b"{}"
        else:
            headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            answer = httpx.request(
                self.command, f"{self.uri}{self.path}", content=body, headers=headers, trust_env=False
            )
            status = answer.status_code
            content = answer.content
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


async def test_five_hundred_refusals_lose_nothing(uri: str, tmp_path: Path) -> None:
    handler = type("OfThisTest", (Refusing,), {"uri": uri, "refusals": 500})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            run = written(tmp_path)
            log = MemoryLog()
            await log.append(run.tape.drafts)
            await follow(log, run, TrackerSpec(kind="mlflow", args={"uri": f"http://127.0.0.1:{proxy.server_port}"}))
        finally:
            proxy.shutdown()
            thread.join()
    assert handler.refusals == 0
    assert shown_at(uri, str(run.id)) == await expected("mlflow", run, log)
