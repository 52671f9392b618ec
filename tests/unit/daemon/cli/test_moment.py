"""One run at one moment: `get`, `watch`, `why` and the API tell the same figures in the same words."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator

import httpx
import pytest
from rich.console import Console
from synthetic.daemon.command_line import Rftd, Served
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.cli.settings import Settings
from rftd.daemon.cli.verbs import watch
from rftd.daemon.cli.verbs.get import render
from rftd.daemon.http.client.client import Client
from rftd.daemon.http.views import experiments
from rftd.daemon.run.why.under_way import WorkUnderWay, work_words
from rftd.daemon.run.why.wait import Wait, Why
from rftd.ops.clock import SystemClock
from rftd.ops.words import Level
from rftd.streams.spec.engines import MemoryNeed, WorkerMemory

WORK = WorkUnderWay(kind="rows", ended=0, total=64, tokens=5100, tokens_per_s=44.0, longest_s=360.0)
WAITS = [
    Wait("planner", "experiences", "3 more groups", "explorers", "they end", Level.WAITS),
    Wait("evaluation", "scores", "weight version 4 on held: 0 of 64 rows are scored", "", "", Level.WORKS),
]
MEMORY = [
    WorkerMemory(
        role="trainer",
        stage="rft",
        workers=1,
        device="CPU",
        device_bytes=1 << 34,
        needs=(MemoryNeed(what="weights", size_bytes=1 << 30),),
    )
]


@pytest.fixture
def busy(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run under way whose daemon knows waits, tokens and memory."""
    parts = served.parts
    run = SyntheticRun(Recorder(seed=3), name="busy", seed=3, steps=9).warmed_up()
    run.explore()
    run.train()
    run.explore()
    run.explore()
    run.train()

    async def add() -> None:
        for position in await parts.log.append(run.recorder.drafts):
            await parts.projector.wait_for(position.partition, position.offset, 30.0)

    asyncio.run_coroutine_threadsafe(add(), served.loop).result(60)

    async def why(experiment: object) -> Why:
        return Why(experiment=str(run.id), name="busy", status="running", live=True, asked_ns=1, waits=WAITS)

    monkeypatch.setattr(parts.operations, "why", why)
    monkeypatch.setattr(parts.operations, "under_way", lambda _: WORK)
    monkeypatch.setattr(parts.operations, "memory", lambda _: MEMORY)
    yield str(run.id)


def test_all_clients_tell_the_same_words(
    busy: str, rftd: Rftd, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with httpx.Client(base_url=served.url) as client:
        moment = client.get(f"/v1/experiments/{busy}/moment").json()
        page = client.get(f"/v1/experiments/{busy}").json()["moment"]
        why = client.get(f"/v1/experiments/{busy}/why").json()["moment"]
    assert moment == page == why
    assert moment["sentence"] == moment["why"] == "planner waits for 3 more groups; explorers: they end"
    assert moment["work_words"] == "0 of 64 rows; 5,100 tokens at 44/s; the longest rows need about 6 min"
    assert moment["progress"] == "step 4 of 11 (36%), stage rft"
    assert moment["memory"] == ["trainer of rft: 1.0 GiB of 16.0 GiB of CPU: weights 1.0 GiB"]
    assert moment["pace"]["step_s"] > 0
    assert moment["evaluation"] == "weight version 4 on held: 0 of 64 rows are scored"
    words = [moment["sentence"], moment["work_words"], moment["pace_words"], *moment["memory"]]
    shown = rftd("get", busy).out
    assert all(text in shown for text in (*words, moment["evaluation"]))
    told = rftd("why", busy).out
    assert all(text in told for text in (*words, moment["progress"]))
    assert json.loads(rftd("get", busy, "--json").out)["moment"]["work_words"] == work_words(WORK)
    settings = Settings(server=served.url, timeout_s=10.0)
    with Client(settings) as query:
        page_now = query.ask(experiments.one, name=busy).value
        refreshed = watch._refreshed(query, page_now)
    assert refreshed is not None
    drawn = io.StringIO()
    Console(file=drawn, width=300).print(render(refreshed[0], SystemClock()))
    assert all(text in drawn.getvalue() for text in words)
