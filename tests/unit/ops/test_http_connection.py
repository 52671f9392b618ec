"""What a client may hold up of a server: it is refused in the server's own form, and nobody else is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from rftd.ops.http_connection import ConnectionBounds
from rftd.ops.http_server import bind, serving_http

pytestmark = pytest.mark.anyio
PATIENCE_S = 120.0
WHOLE = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
SOON_S = 0.05


class App:
    """Answers each request, and knows of each client that went away before it had its answer."""

    def __init__(self, size_bytes: int = 2) -> None:
        self.answer = b"x" * size_bytes
        self.requests = 0
        self.lost = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.answer, "more_body": True})
        if len(self.answer) > 2:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.lost.set()
            return
        await send({"type": "http.response.body", "body": b""})


def in_letters(status: int, what: str) -> tuple[bytes, bytes]:
    return b"text/letters", f"{status}! {what}".encode()


@asynccontextmanager
async def served(app: App, bounds: ConnectionBounds) -> AsyncIterator[tuple[str, int]]:
    bound = bind("127.0.0.1", 0)
    async with asyncio.timeout(PATIENCE_S), serving_http(app, bound, refusal=in_letters, bounds=bounds):
        yield bound.getsockname()


async def told(address: tuple[str, int], *parts: bytes) -> bytes:
    """Everything that a client hears until the server closes."""
    reader, writer = await asyncio.open_connection(*address)
    for part in parts:
        writer.write(part)
        await writer.drain()
    heard = await reader.read()
    writer.close()
    return heard


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", WHOLE.replace(b"host", b"ho st")])
async def test_what_is_no_http_is_refused_in_the_servers_own_form(sent: bytes) -> None:
    async with served(App(), ConnectionBounds()) as address:
        heard = await told(address, sent + b"\r\n\r\n")
    assert heard.startswith(b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/letters\r\n")
    assert heard.endswith(b"400! what was sent is no valid HTTP/1.1 request")


@pytest.mark.parametrize(
    ("before", "part"),
    [([], b""), ([], b"GET / HTTP/1.1\r\nho"), ([WHOLE], b"GET / HTTP/1.1\r\nho")],
    ids=["nothing", "a part", "a part of the second"],
)
async def test_a_head_that_does_not_come_is_refused(before: list[bytes], part: bytes) -> None:
    app = App()
    async with served(app, ConnectionBounds(head_s=SOON_S)) as address:
        reader, writer = await asyncio.open_connection(*address)
        for request in before:
            writer.write(request)
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(part)
        heard = await reader.read()
        writer.close()
    assert heard.startswith(b"HTTP/1.1 408 ")
    assert b"the head of the request did not come within 0.05 s" in heard
    assert app.requests == len(before)


async def test_a_slow_answer_is_nobodys_fault() -> None:
    """The bound is of the head alone: a request that is under way has all the time that it takes."""

    class Slow(App):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.sleep(SOON_S * 4)
            await super().__call__(scope, receive, send)

    async with served(Slow(), ConnectionBounds(head_s=SOON_S)) as address:
        assert (await told(address, WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))).startswith(
            b"HTTP/1.1 200"
        )


async def test_a_client_that_reads_nothing_is_cut_off() -> None:
    app = App(size_bytes=64 << 20)
    async with served(app, ConnectionBounds(unread_s=SOON_S)) as address:
        with socket.create_connection(address) as client:
            client.sendall(WHOLE)
            await app.lost.wait()


async def test_connections_beyond_the_bound_are_refused_and_the_others_go_on() -> None:
    async with served(App(), ConnectionBounds(connections=2)) as address:
        first = await asyncio.open_connection(*address)
        second = await asyncio.open_connection(*address)
        for reader, writer in (first, second):
            writer.write(WHOLE)
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert (await told(address)).startswith(b"HTTP/1.1 503 ")
        first[1].close()
        await first[1].wait_closed()
        while not (
            heard := await told(address, WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        ).startswith(b"HTTP/1.1 200"):
            assert heard.startswith(b"HTTP/1.1 503 ")
        second[1].close()
