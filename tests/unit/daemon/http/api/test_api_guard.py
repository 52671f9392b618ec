"""Who may ask: tokens, hosts and origins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from synthetic.daemon.daemon_parts import BASE, DaemonParts, open_daemon

pytestmark = pytest.mark.anyio


@pytest.fixture
async def guarded(tmp_path: Path, anyio_backend: str) -> AsyncIterator[DaemonParts]:
    async with open_daemon(tmp_path, token="right") as opened:
        yield opened


async def test_without_the_token_nothing_but_probes(guarded: DaemonParts) -> None:
    async with guarded.client() as client:
        for given in (None, "right", "Bearer wrong", "Bearer", "Basic right", "Bearer rightx", "Bearer é"):
            headers = {"Authorization": given.encode()} if given else {}
            refused = await client.get("/v1/experiments", headers=headers)
            assert refused.status_code == 401
            assert refused.json()["code"] == "RFTD-API-001"
            assert refused.headers["www-authenticate"] == "Bearer"
            assert "right" not in refused.text
            assert (await client.get("/metrics", headers=headers)).status_code == 401
        assert (await client.get("/livez")).status_code == (await client.get("/readyz")).status_code == 200


async def test_with_the_token_everything(guarded: DaemonParts) -> None:
    async with guarded.client(Authorization="bearer right") as client:
        assert (await client.get("/v1/experiments")).status_code == 200


async def test_a_name_that_a_stranger_points_here_is_not_served(parts: DaemonParts) -> None:
    served = {"evil.example": 403, "127.0.0.1:7070": 200, "[::1]:1": 200, "localhost": 200, "": 403}
    for host, status in served.items():
        async with parts.client(Host=host) as client:
            assert (await client.get("/v1/experiments")).status_code == status, host


async def test_a_foreign_page_may_not_command(client: httpx.AsyncClient) -> None:
    foreign = await client.post("/v1/experiments/small/cancel", headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert foreign.json()["code"] == "RFTD-API-002"
    assert (await client.get("/v1/experiments", headers={"Origin": BASE})).status_code == 200
