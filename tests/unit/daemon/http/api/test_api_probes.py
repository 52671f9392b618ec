"""Probes, metrics, version, and the document that describes them all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from synthetic.daemon.daemon_parts import DaemonParts

from rftd.streams.sqlite.wal import Blocked, Holder

pytestmark = pytest.mark.anyio
GOLDEN = Path(__file__).parents[4] / "golden"


async def test_ready_until_a_part_says_no(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    assert (await client.get("/livez")).text == "ok"
    verdict = (await client.get("/readyz?verbose")).json()
    assert verdict["ok"]
    assert {check["name"] for check in verdict["checks"]} == {
        "log",
        "state",
        "projector",
        "wal",
        "disk",
        "parts",
    }
    parts.projector.last_error = "the database is away"
    refused = await client.get("/readyz")
    assert refused.status_code == 503
    assert refused.text == "projector: the database is away"
    assert (await client.get("/readyz?verbose")).json()["ok"] is False
    assert (await client.get("/livez")).status_code == 200


async def test_a_database_that_is_away_is_503_everywhere(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    async with parts.engine.begin() as connection:
        await connection.execute(text("DROP TABLE positions"))
        await connection.execute(text("DROP TABLE experiments"))
    assert (await client.get("/readyz")).status_code == 503
    refused = await client.get("/v1/experiments")
    assert refused.status_code == 503
    assert refused.json()["code"] == "RFTD-NET-001"
    assert (await client.get("/livez")).status_code == 200


async def test_a_database_without_a_free_connection_is_503(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    parts.engine.pool._timeout = 0.05  # type: ignore[attr-defined]  # of seconds; half a minute is the library's
    async with AsyncExitStack() as held:
        with pytest.raises(PoolTimeoutError):
            while True:
                await held.enter_async_context(parts.engine.connect())
        refused = await client.get("/v1/experiments")
    assert (refused.status_code, refused.json()["code"]) == (503, "RFTD-NET-001")
    assert (await client.get("/v1/experiments")).status_code == 200


async def test_metrics_tell_of_the_log_and_of_what_was_fed(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    scraped = (await client.get("/metrics")).text
    assert 'rftd_build_info{commit="",version="1.2.3"} 1.0' in scraped
    assert 'rftd_stream_produced_records_total{stream="rftd.experiments"}' in scraped
    assert 'rftd_projection_lag_events{projection="all"} 0.0' in scraped


async def test_requests_are_counted_by_route_and_not_by_what_strangers_write(client: httpx.AsyncClient) -> None:
    for path in ("/v1/experiments/small", "/v1/experiments/nope", "/v1/experiments/nope2", "/x/1", "/x/2"):
        await client.get(path)
    await client.get("/v1/experiments", headers={"Host": "evil.example"})
    scraped = (await client.get("/metrics")).text
    counted = {line for line in scraped.splitlines() if line.startswith("rftd_http_requests_total")}
    assert counted >= {
        'rftd_http_requests_total{route="/v1/experiments/{name}",status="200"} 1.0',
        'rftd_http_requests_total{route="/v1/experiments/{name}",status="404"} 2.0',
        'rftd_http_requests_total{route="none",status="404"} 2.0',
        'rftd_http_requests_total{route="none",status="403"} 1.0',
    }
    assert "process_resident_memory_bytes" in scraped


async def test_a_reader_in_the_way_of_the_log_is_named_everywhere(
    client: httpx.AsyncClient, parts: DaemonParts
) -> None:
    parts.log.wal_size_bytes = 300 << 20  # type: ignore[attr-defined]
    parts.log.blocked = Blocked(300 << 20, 1.0, (Holder(4711, "sqlite3"),))  # type: ignore[attr-defined]
    ready = await client.get("/readyz")
    assert ready.status_code == 200
    assert ready.text.startswith("ok\nwal: ")
    assert "has 300 MiB and cannot be emptied while process 4711 (sqlite3) keeps a transaction open" in ready.text
    [check] = [each for each in (await client.get("/readyz?verbose")).json()["checks"] if each["name"] == "wal"]
    assert check["ok"]
    assert "4711" in check["reason"]
    scraped = (await client.get("/metrics")).text
    assert "rftd_log_wal_size_bytes 3.145728e+08" in scraped
    assert "rftd_log_wal_blocked 1.0" in scraped
    assert "rftd_log_wal_blocked_by_pid 4711.0" in scraped
    parts.log.blocked = None  # type: ignore[attr-defined]
    assert (await client.get("/readyz")).text == "ok"
    assert "rftd_log_wal_blocked_by_pid 0.0" in (await client.get("/metrics")).text


async def test_version(client: httpx.AsyncClient) -> None:
    assert set((await client.get("/version")).json()) == {"version", "python"}


async def test_the_document_is_what_clients_were_promised(client: httpx.AsyncClient) -> None:
    """A change that is meant is written by tests/golden/make_openapi.py, with a line in CHANGELOG."""
    promised = json.loads((GOLDEN / "openapi.json").read_text(encoding="utf-8"))
    assert (await client.get("/openapi.json")).json() == promised


@pytest.mark.usefixtures("longer", "swept")
async def test_the_document_describes_what_is_answered(client: httpx.AsyncClient, parts: DaemonParts) -> None:
    document = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for name in _references(document):
        assert name in schemas, name
    row = (await client.get("/v1/experiments/small/experiences?limit=1")).json()["items"][0]
    some = row["id"]
    asked = {
        "/v1/experiments": "/v1/experiments",
        "/v1/experiments/{name}": "/v1/experiments/small",
        "/v1/experiments/{name}/summary": "/v1/experiments/small/summary",
        "/v1/experiments/{name}/steps": "/v1/experiments/small/steps",
        "/v1/experiments/{name}/batches/{step}": "/v1/experiments/small/batches/3",
        "/v1/experiments/{name}/evals": "/v1/experiments/small/evals",
        "/v1/experiments/{name}/evals/{version}": "/v1/experiments/small/evals/4?against=3&order=worst",
        "/v1/experiments/{name}/held-out/{row}": "/v1/experiments/small/held-out/1",
        "/v1/experiments/{name}/experiences": "/v1/experiments/small/experiences",
        "/v1/experiments/{name}/experiences/{experience}": f"/v1/experiments/small/experiences/{some}?tokens=true",
        "/v1/experiments/{name}/experiences/{experience}/text": f"/v1/experiments/small/experiences/{some}/text",
        "/v1/experiments/{name}/experiences/{experience}/tokens": f"/v1/experiments/small/experiences/{some}/tokens",
        "/v1/experiments/{name}/groups/{group}/text": f"/v1/experiments/small/groups/{row['group']}/text",
        "/v1/experiments/{name}/rows/{row}/text": "/v1/experiments/small/rows/0/text",
        "/v1/experiments/{name}/events": "/v1/experiments/small/events",
        "/v1/experiments/{name}/lengths": "/v1/experiments/small/lengths",
        "/v1/experiments/{name}/words": "/v1/experiments/small/words?q=cat&step=900",
        "/v1/experiments/{name}/prompts": f"/v1/experiments/small/prompts?group={row['group']}",
        "/v1/experiments/{name}/drops": "/v1/experiments/small/drops",
        "/v1/experiments/{name}/logs": "/v1/experiments/small/logs",
        "/v1/experiments/{name}/tasks": "/v1/experiments/small/tasks",
        "/v1/experiments/{name}/annotations": "/v1/experiments/small/annotations",
        "/v1/experiments/{name}/moment": "/v1/experiments/small/moment",
        "/v1/experiments/{name}/why": "/v1/experiments/small/why",
        "/v1/experiments/{name}/groups": "/v1/experiments/small/groups",
        "/v1/experiments/{name}/config": "/v1/experiments/small/config",
        "/v1/experiments/{name}/timeline": "/v1/experiments/small/timeline",
        "/v1/experiments/{name}/checkpoints": "/v1/experiments/small/checkpoints?deleted=true",
        "/v1/diff": "/v1/diff?name=small&name=longer",
        "/v1/comparison": "/v1/comparison?name=small&name=longer",
        "/v1/series": "/v1/series?runs=small&runs=longer&metrics=loss&by=time",
        "/v1/dead-letters": "/v1/dead-letters?all=true",
        "/v1/requests/refused": "/v1/requests/refused",
        "/v1/logs": "/v1/logs",
        "/v1/lineage": "/v1/lineage?id=small/weights/4",
        "/v1/sweeps": "/v1/sweeps",
        "/v1/sweeps/{sweep}": "/v1/sweeps/lr",
        "/v1/tokens": "/v1/tokens",
        "/v1/workers": "/v1/workers",
        "/v1/streams": "/v1/streams",
        "/v1/system": "/v1/system",
        "/v1/machine": "/v1/machine",
        "/v1/pipelines": "/v1/pipelines",
        "/v1/alerts": "/v1/alerts",
        "/v1/allowances": "/v1/allowances",
        "/v1/hub-cache": "/v1/hub-cache",
        "/v1/keeping": "/v1/keeping",
        "/version": "/version",
    }
    reads = {path for path, operations in document["paths"].items() if "get" in operations}
    elsewhere = {
        "/livez",
        "/readyz",
        "/login",
        "/metrics",
        "/llms.txt",
        "/skill.md",
        "/v1/experiments/{name}/stream",
        "/v1/experiments/{name}/checkpoints/{step}",
        "/v1/experiments/{name}/checkpoints/{step}/file",
        "/v1/dead-letters/one",
    }
    assert reads == {*asked, *elsewhere}
    for path, url in asked.items():
        schema = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        _check((await client.get(url)).json(), schema, schemas, path)
    problem = (await client.get("/v1/experiments/nope")).json()
    _check(problem, {"$ref": "#/components/schemas/Problem"}, schemas, "problem")


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference.removeprefix("#/components/schemas/")
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


_KINDS = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def _check(value: Any, schema: dict[str, Any], schemas: dict[str, Any], where: str) -> None:
    """What the schemas of this document can say, and nothing is sent that they do not name."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].removeprefix("#/components/schemas/")]
    if "anyOf" in schema:
        choices = [each for each in schema["anyOf"] if (each.get("type") == "null") == (value is None)]
        assert choices, (where, value)
        if value is not None:
            _check(value, choices[0], schemas, where)
        return
    if "type" in schema:
        assert isinstance(value, _KINDS[schema["type"]]), (where, value, schema)
    if "properties" in schema:
        assert set(schema["required"]) <= set(value) <= set(schema["properties"]), where
        for name, part in value.items():
            _check(part, schema["properties"][name], schemas, f"{where}.{name}")
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            _check(item, schema["items"], schemas, f"{where}[]")
