"""What the daemon answers while its log or its database is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse

from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.http.api.probes import Gate
from rftd.daemon.serve.data_folder import FOLDER_HEADER
from rftd.daemon.trust.keyring import Keyring
from rftd.ops.clock import SystemClock
from rftd.ops.errors import UnreachableError
from rftd.ops.logs import logger

pytestmark = pytest.mark.anyio


def client_of(gate: Gate) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://127.0.0.1:7070")


async def test_it_is_live_and_not_ready_and_says_why() -> None:
    gate = Gate(hold_s=0.0)
    async with client_of(gate) as client:
        early = await client.get("/v1/experiments")
        assert early.status_code == 503
        assert early.json()["detail"] == "the daemon is not ready, it is starting"
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


async def test_without_a_token_it_says_that_it_is_not_ready_and_nothing_else(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path, clock=SystemClock(), logger=logger())
    gate = Gate(hold_s=0.0, doorkeeper=Doorkeeper(keyring))
    gate.wait_for("log", UnreachableError("no broker answers at k:9092", fix="start it"))
    owner = {"Authorization": f"Bearer {keyring.tokens.owner_token}"}
    async with client_of(gate) as client:
        for path in ("/readyz", "/readyz?verbose", "/livez", "/v1/experiments", "/login"):
            assert "k:9092" not in (await client.get(path)).text
        assert (await client.get("/readyz")).text == "log"
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/v1/experiments")).status_code == 401
        assert "k:9092" in (await client.get("/readyz?verbose", headers=owner)).text
        assert "k:9092" in (await client.get("/v1/experiments", headers=owner)).text


async def test_a_request_is_kept_while_it_only_starts() -> None:
    gate = Gate(hold_s=30.0)
    async with client_of(gate) as client, asyncio.TaskGroup() as tasks:
        kept = tasks.create_task(client.get("/v1/experiments"))
        # A probe is not: it is answered after the request came, and before that one is.
        assert (await client.get("/readyz")).text == "daemon: RFTD-NET-001: it is starting; fix: ask again in a second"
        assert not kept.done()
        gate.open(PlainTextResponse("api"))
        assert (await kept).text == "api"


async def test_a_request_is_not_kept_for_what_somebody_has_to_bring() -> None:
    gate = Gate(hold_s=30.0)
    async with client_of(gate) as client, asyncio.TaskGroup() as tasks:
        kept = tasks.create_task(client.get("/v1/experiments"))
        await client.get("/readyz")
        gate.wait_for("log", UnreachableError("no broker answers"))
        assert "no broker answers" in (await kept).text
        assert "no broker answers" in (await client.get("/v1/experiments")).text


async def test_once_open_the_api_answers() -> None:
    gate = Gate()
    gate.open(PlainTextResponse("api"))
    async with client_of(gate) as client:
        assert (await client.get("/readyz")).text == "api"


@pytest.mark.parametrize("path", ["/v1/experiments", "/readyz", "/metrics"])
async def test_what_is_meant_for_the_daemon_of_another_folder_reaches_nothing(path: str) -> None:
    gate = Gate(folder="this")
    gate.open(PlainTextResponse("api"))
    async with client_of(gate) as client:
        refused = await client.post(path, headers={FOLDER_HEADER: "another"}, json={})
        assert refused.status_code == 421
        assert refused.json()["code"] == "RFTD-API-007"
        for headers in ({}, {FOLDER_HEADER: "this"}):
            assert (await client.post(path, headers=headers, json={})).text == "api"
