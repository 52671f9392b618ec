"""The HTTP server within a loop: it answers, and leaves when it is told to, not when it next looks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.responses import PlainTextResponse, StreamingResponse

from rftd.ops import http_server
from rftd.ops.bound_socket import bind, url_of
from rftd.ops.http_server import serving_http

pytestmark = pytest.mark.anyio


async def test_it_answers_with_a_date_and_leaves_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "TICK_S", 3600.0)
    bound = bind("127.0.0.1", 0)
    async with asyncio.timeout(60):
        async with serving_http(PlainTextResponse("here"), bound), httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(url_of(bound))
            assert answer.text == "here"
            assert answer.headers["date"].endswith("GMT")


async def test_a_watched_stream_ends_with_the_server_and_without_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_server, "GRACE_S", 0)
    bound = bind("127.0.0.1", 0)

    async def endless() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    async def watch(seen: asyncio.Event) -> None:
        async with httpx.AsyncClient(trust_env=False) as client, client.stream("GET", url_of(bound)) as answer:
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in answer.aiter_bytes():
                    seen.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        seen = asyncio.Event()
        async with serving_http(StreamingResponse(endless()), bound):
            tasks.create_task(watch(seen))
            await seen.wait()
    assert capfd.readouterr().err == ""


async def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_head() -> None:
    """asyncio turns Nagle's algorithm off for a connection whose socket says that it is TCP."""
    bound = bind("127.0.0.1", 0)
    connected: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted = transport.get_extra_info("socket")
            connected.set_result(bool(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            transport.close()

    async with await asyncio.get_running_loop().create_server(Accepting, sock=bound):
        _, writer = await asyncio.open_connection(*bound.getsockname())
        async with asyncio.timeout(60):
            assert await connected
        writer.close()
