"""The HTTP server within a loop: it answers, and leaves when it is told to, not when it next looks."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse

from rftd.ops import http_server
from rftd.ops.http_server import bind, serving_http, url_of

pytestmark = pytest.mark.anyio


async def test_it_answers_with_a_date_and_leaves_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "TICK_S", 3600.0)
    bound = bind("127.0.0.1", 0)
    async with asyncio.timeout(60):
        async with serving_http(PlainTextResponse("here"), bound), httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(url_of(bound))
            assert answer.text == "here"
            assert answer.headers["date"].endswith("GMT")
