"""What the API sends is what its client reads: every declared read, there and back."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from synthetic.daemon.daemon_parts import DaemonParts
from synthetic.daemon.log_operations import LogOperations

from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.http.api.guard import Guard
from rftd.daemon.http.api.routes import declared_routes, router
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.views import (
    access,
    annotations,
    checkpoints,
    comparison,
    configuration,
    dead_letters,
    differences,
    drops,
    evaluations,
    events,
    experiences,
    experiments,
    groups,
    history,
    hub,
    keeping,
    logs,
    machine,
    moment,
    refusals,
    series,
    sweeps,
    system,
    tasks,
    text,
    timeline,
    tokens,
    version,
    words,
)
from rftd.daemon.http.views.route import Daemon, Limit, Name, ReadRoute, read
from rftd.daemon.http.views.wire import from_wire, to_wire
from rftd.ops.clock import iso, time_ns_of
from rftd.storage.queries.experiments import ExperimentSummary
from rftd.streams.folds.spine import Status
from rftd.streams.memory import MemoryLog

ASKED: dict[Any, dict[str, object]] = {
    checkpoints.checkpoints: {"name": "small", "deleted": "true"},
    checkpoints.checkpoint: {"name": "small", "step": 5},
    comparison.comparison: {"name": ["small", "longer"]},
    dead_letters.many: {"all": "true"},
    dead_letters.one: {"id": "task"},
    events.events: {"name": "small", "limit": 1000},
    experiences.experience: {"name": "small", "experience": "some", "tokens": "true"},
    experiences.experiences: {"name": "small"},
    experiences.lengths: {"name": "small"},
    differences.diff: {"name": ["small", "longer"]},
    drops.drops: {"name": "small"},
    groups.groups: {"name": "small"},
    groups.prompts: {"name": "small", "group": "group"},
    words.words: {"name": "small", "q": "cat", "step": 900},
    text.experience_text: {"name": "small", "experience": "some"},
    text.group_text: {"name": "small", "group": "group"},
    text.row_text: {"name": "small", "row": 0},
    tokens.tokens: {"name": "small", "experience": "some"},
    experiments.listed: {},
    experiments.one: {"name": "small"},
    experiments.summary: {"name": "small"},
    history.batch: {"name": "small", "step": 3},
    evaluations.evaluation: {"name": "small", "version": 4, "against": 3, "order": "changed"},
    evaluations.held_out: {"name": "small", "row": 2},
    history.evals: {"name": "small"},
    history.steps: {"name": "small"},
    history.lineage: {"id": "small/weights/4"},
    logs.logs: {"name": "small"},
    logs.daemon_logs: {},
    refusals.refused: {},
    access.allowances: {},
    access.tokens: {},
    hub.hub_cache: {},
    keeping.keeping: {},
    series.series: {"runs": "small,longer", "metrics": "loss,reward"},
    sweeps.sweeps: {},
    sweeps.sweep_page: {"sweep": "lr"},
    configuration.config: {"name": "small"},
    timeline.timeline: {"name": "small", "points": 20},
    tasks.queues: {"name": "small"},
    moment.moment: {"name": "small"},
    annotations.annotated: {"name": "small"},
    version.version: {},
    system.workers: {"state": "live"},
    system.streams: {},
    system.system: {},
    system.pipelines: {},
    machine.machine: {},
    system.alerts: {},
    experiments.why: {"name": "small"},
}
"""Every read, with parameters that it has an answer for."""


@pytest.mark.anyio
async def test_who_reads_of_one_experiment_looks_at_it(parts: DaemonParts) -> None:
    async with parts.client() as client:
        for path in ("/small", "/small/steps", "/small/why", "/small/summary", "/none", ""):
            await client.get(f"/v1/experiments{path}")
    assert parts.operations.looks == ["small"] * 3, "neither who asks how far it is, nor who lists them all"


@pytest.mark.anyio
@pytest.mark.usefixtures("longer", "swept")
async def test_each_answer_is_read_as_what_was_sent(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    assert {each.path for each in ASKED} == {each.path for each in declared_routes() if isinstance(each, ReadRoute)}
    written = len(parts.run.recorder.drafts)
    parts.run.explore(failed=3)
    for position in await parts.log.append(parts.run.recorder.drafts[written:]):
        await parts.projector.wait_for(position.partition, position.offset, 10.0)
    [row] = (await client.get("/v1/experiments/small/experiences", params={"limit": 1})).json()["items"]
    stand_ins = {"some": row["id"], "group": row["group"], "task": f"small/task/1.{parts.run.groups - 1}"}
    for each, parameters in ASKED.items():
        path, query = each.url({name: stand_ins.get(str(value), value) for name, value in parameters.items()})
        answer = await client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        assert to_wire(from_wire(answer.json(), each.answer)) == answer.json(), path


def test_times_are_read_as_they_were_written() -> None:
    for time_ns in (0, 1_700_000_000_123_000_000, 1_766_000_000_999_999_999, 4_102_444_800_001_000_000):
        assert iso(time_ns_of(iso(time_ns))) == iso(time_ns)
        assert abs(time_ns - time_ns_of(iso(time_ns))) < 1_000_000


@pytest.mark.anyio
async def test_an_answer_of_a_newer_release_is_read(client: httpx.AsyncClient) -> None:
    sent = (await client.get("/v1/experiments/small/summary")).json()
    newer = {**sent, "what_comes_next": [1], "labels": {"made_at": "home"}}
    assert from_wire(newer, ExperimentSummary).labels == {"made_at": "home"}
    with pytest.raises(msgspec.ValidationError, match="missing required field `state`"):
        from_wire({name: value for name, value in sent.items() if name != "state"}, ExperimentSummary)


class Twice(msgspec.Struct, frozen=True, kw_only=True):
    """A number, twice."""

    name: str
    number: int
    share: float
    asked_ns: int


@read("/v1/experiments/{name}/twice", Twice, tag="experiments")
async def twice(daemon: Daemon, name: Name, number: Limit = 4) -> Twice:
    """Twice the number."""
    return Twice(name=name, number=2 * number, share=math.nan, asked_ns=10**18)


@pytest.mark.anyio
async def test_a_read_is_declared_once() -> None:
    app = FastAPI()
    parts = {**dict.fromkeys(_needed(), None), "operations": LogOperations(MemoryLog())}
    app.include_router(router(Services(**parts), [twice]))  # type: ignore[arg-type]
    transport = httpx.ASGITransport(Guard(app, doorkeeper=Doorkeeper(None), uses=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        path, query = twice.url({"name": "a/b", "number": 21})
        assert path == "/v1/experiments/a%2Fb/twice"
        answer = await client.get("/v1/experiments/ab/twice", params=query)
        assert answer.json() == {"name": "ab", "number": 42, "share": None, "asked_at": "2001-09-09T01:46:40.000Z"}
        back = from_wire(answer.json(), twice.answer)
        assert back.asked_ns == 10**18
        assert math.isnan(back.share)
        assert (await client.get("/v1/experiments/ab/twice", params={"number": 1001})).status_code == 422
    operation = app.openapi()["paths"]["/v1/experiments/{name}/twice"]["get"]
    assert (operation["summary"], operation["description"]) == ("Twice", "Twice the number.")
    assert operation["parameters"][1]["schema"] == {
        "type": "integer",
        "maximum": 1000,
        "minimum": 1,
        "default": 4,
        "title": "Number",
    }


def _needed() -> Iterator[str]:
    """The parts of a daemon that have no default."""
    yield from ("operations", "engine", "log", "applied", "health", "scrape", "clock", "ids", "version")


def test_states_that_nothing_leaves_are_those_of_the_log() -> None:
    assert {each.value for each in Status if each.ended} == moment.ENDED


VERBS = (
    "dlq",
    "events",
    "experiences",
    "get",
    "keeping",
    "lineage",
    "logs",
    "ls",
    "submit",
    "transitions",
    "why",
)


def test_who_asks_a_daemon_imports_neither_sql_nor_the_log() -> None:
    names = ", ".join(f"rftd.daemon.cli.verbs.{verb}" for verb in VERBS)
    heavy = "{'sqlalchemy', 'fastapi', 'numpy', 'torch', 'pydantic', 'rftd.streams', 'rftd.workers'}"
    program = f"import sys, rftd.daemon.http.client.client, {names}; print(sorted({heavy} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=240)
    assert said.stdout.strip() == "[]", said
