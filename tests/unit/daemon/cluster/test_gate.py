"""What the daemon answers while its log or its database is not there."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import PlainTextResponse

from rftd.daemon.api.probes import Gate
from rftd.ops.errors import UnreachableError

pytestmark = pytest.mark.anyio


def client_of(gate: Gate) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://daemon")


async def test_it_is_live_and_not_ready_and_says_why() -> None:
    gate = Gate()
    async with client_of(gate) as client:
        assert (await client.get("/livez")).status_code == 200
        assert "starting" in (await client.get("/readyz")).text
        gate.wait_for("log", UnreachableError("no broker answers at k:9092", fix="start it"))
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert ready.text == "log: RFTD-NET-001: no broker answers at k:9092; fix: start it"
        verbose = (await client.get("/readyz?verbose")).json()
        assert verbose["checks"][0]["name"] == "log"
        refused = await client.post("/v1/experiments", json={})
        assert refused.status_code == 503
        assert refused.headers["content-type"] == "application/problem+json"
        assert "no broker answers" in refused.json()["detail"]


async def test_once_open_the_api_answers() -> None:
    gate = Gate()
    gate.open(PlainTextResponse("api"))
    async with client_of(gate) as client:
        assert (await client.get("/readyz")).text == "api"
