"""A real MLflow server has what `rftd steps` shows, whenever the follower dies, and while the server is away."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, TypeAlias

import httpx
import pytest
from synthetic.tracking.mlflow_runs import runs_of, shown_at
from synthetic.tracking.tracked import Deaths, expected, follow, follow_and_die, written

from rftd.ops.clock import ManualClock
from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec

pytest.importorskip("mlflow")
pytestmark = pytest.mark.anyio
Trouble: TypeAlias = Literal["killed before", "killed after"] | int | None
"""A server's end before or after it has done the work, or the status of a refusal."""


async def test_the_server_has_every_figure_once_whenever_the_follower_dies(uri: str, tmp_path: Path) -> None:
    run = written(tmp_path)
    tracker = TrackerSpec(kind="mlflow", args={"uri": uri})
    log = MemoryLog()
    deaths = Deaths(random.Random(2).sample(range(1, 40), 20))
    await follow_and_die(log, run, tracker, deaths, portion=60)
    assert deaths.count == 20
    assert shown_at(uri, str(run.id)) == await expected("mlflow", run, log)
    trainer = runs_of(uri, str(run.id))["trainer"]
    assert (trainer.info.run_name, trainer.info.status, trainer.data.params["name"]) == (
        *("small_trainer", "FINISHED"),
        "small",
    )


class Gateway(BaseHTTPRequestHandler):
    """A server before the server: it answers for it, or is in trouble."""

    uri = ""
    trouble: Callable[[str], Trouble] = staticmethod(lambda path: None)
    """What happens to a request for this path."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        trouble = type(self).trouble(self.path)
        if trouble == "killed before":
            self.close_connection = True
            return
        if isinstance(trouble, int):
            self._send(trouble, b"{}")
            return
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        answer = httpx.request(self.command, f"{self.uri}{self.path}", content=body, headers=headers, trust_env=False)
        if trouble == "killed after":
            self.close_connection = True
            return
        self._send(answer.status_code, answer.content)

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def gateway(uri: str, trouble: Callable[[str], Trouble]) -> Iterator[TrackerSpec]:
    """A tracker whose requests go through a gateway."""
    handler = type("OfThisTest", (Gateway,), {"uri": uri, "trouble": staticmethod(trouble)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield TrackerSpec(kind="mlflow", args={"uri": f"http://127.0.0.1:{proxy.server_port}"})
        finally:
            proxy.shutdown()
            thread.join()


class Troubles:
    """Counts what happened to requests."""

    def __init__(self) -> None:
        self.refusals = 0
        self.kills = 0
        self.absences = 0


async def test_five_hundred_refusals_lose_nothing(uri: str, tmp_path: Path) -> None:
    troubles = Troubles()

    def refused(path: str) -> Trouble:
        if troubles.refusals == 500:
            return None
        troubles.refusals += 1
        return 429 if troubles.refusals % 2 else 503

    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with gateway(uri, refused) as tracker:
        await follow(log, run, tracker)
    assert troubles.refusals == 500
    assert shown_at(uri, str(run.id)) == await expected("mlflow", run, log)


async def test_a_server_that_is_killed_twenty_times_loses_and_doubles_nothing(uri: str, tmp_path: Path) -> None:
    troubles = Troubles()
    chance = random.Random(7)
    ways: tuple[Trouble, ...] = ("killed before", "killed after")

    def killed(path: str) -> Trouble:
        # Those whose answer is lost although the work is done are where a second run would be made or never ended.
        begins_or_ends = path.endswith(("runs/create", "runs/update", "experiments/create"))
        spared = troubles.kills >= 16 or chance.random() > 0.3
        if troubles.kills == 20 or (spared and not begins_or_ends):
            return None
        troubles.kills += 1
        return "killed after" if begins_or_ends else chance.choice(ways)

    run = written(tmp_path)
    log = MemoryLog()
    with gateway(uri, killed) as tracker:
        await follow_and_die(log, run, tracker, Deaths([]), portion=60)
    assert troubles.kills == 20
    assert shown_at(uri, str(run.id)) == await expected("mlflow", run, log)
    runs = runs_of(uri, str(run.id))
    assert {role: (found.info.status, found.data.params["name"]) for role, found in runs.items()} == {
        role: ("FINISHED", "small") for role in ("explorer", "trainer")
    }


async def test_a_server_that_is_away_for_a_minute_is_waited_for(uri: str, tmp_path: Path) -> None:
    troubles = Troubles()
    clock = ManualClock()
    away_s = clock.monotonic_s() + 60.0

    def away(path: str) -> Trouble:
        if clock.monotonic_s() >= away_s:
            return None
        troubles.absences += 1
        return "killed before"

    run = written(tmp_path)
    log = MemoryLog()
    await log.append(run.recorder.drafts)
    with gateway(uri, away) as tracker:
        await follow(log, run, tracker, clock=clock)
    assert 3 <= troubles.absences <= 20
    assert shown_at(uri, str(run.id)) == await expected("mlflow", run, log)
