"""What a client may hold up of a server: it is refused in the server's own form, and nobody else is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from rftd.ops.bound_socket import bind
from rftd.ops.http_connection import ConnectionBounds, HttpConnection
from rftd.ops.http_server import serving_http

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
    assert heard.endswith(b"400! this is not a valid HTTP/1.1 request")


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


async def test_a_connection_gives_way_to_a_newcomer_if_it_lets_the_server_wait() -> None:
    """The silent ones first, then those with a part of a request, then those between two requests."""
    async with served(App(), ConnectionBounds(connections=3)) as address:
        idle = await asyncio.open_connection(*address)
        idle[1].write(WHOLE)
        assert (await idle[0].readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        begun = await asyncio.open_connection(*address)
        begun[1].write(WHOLE[:10])
        silent = await asyncio.open_connection(*address)
        newcomers = []
        for shown_out in (silent, begun, idle):
            newcomer = await asyncio.open_connection(*address)
            newcomer[1].write(WHOLE)
            assert (await newcomer[0].readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert (await shown_out[0].read()).startswith(b"HTTP/1.1 503 ")
            newcomers.append(newcomer)
        for _, writer in (idle, begun, silent, *newcomers):
            writer.close()


async def test_where_all_are_being_answered_a_newcomer_is_refused_and_they_go_on() -> None:
    class Held(App):
        goes_on = asyncio.Event()

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self.goes_on.wait()
            await super().__call__(scope, receive, send)

    app = Held()
    async with served(app, ConnectionBounds(connections=2)) as address:
        answered = [await asyncio.open_connection(*address) for _ in range(2)]
        for _, writer in answered:
            writer.write(WHOLE)
        assert (await told(address)).startswith(b"HTTP/1.1 503 ")
        app.goes_on.set()
        for reader, writer in answered:
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_hundreds_of_silent_connections_keep_nobody_out() -> None:
    app = App()
    async with served(app, ConnectionBounds(connections=64)) as address:
        held = [await asyncio.open_connection(*address) for _ in range(256)]
        for number in range(32):
            last = WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
            assert (await told(address, last)).startswith(b"HTTP/1.1 200"), number
        for _, writer in held:
            writer.close()
    assert app.requests == 32


class Reads(App):
    """Reads the whole body before it answers, and says whether it came to its end."""

    whole = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
        self.whole = message["type"] == "http.request"
        if self.whole:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": self.answer})
        self.lost.set()


POST = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 10000\r\n\r\n"


@pytest.mark.parametrize(("whole_s", "rate"), [(60.0, 1_000_000), (SOON_S, 1)], ids=["too slow", "too long"])
async def test_a_body_that_does_not_come_is_refused_and_is_no_request(whole_s: float, rate: int) -> None:
    app = Reads()
    async with served(app, ConnectionBounds(body_s=SOON_S, body_bytes_per_s=rate, whole_body_s=whole_s)) as address:
        heard = await told(address, POST, b"x" * 10)
        await app.lost.wait()
    assert heard.startswith(b"HTTP/1.1 408 ")
    assert b"of the body " in heard
    assert not app.whole


async def test_a_body_that_comes_fast_enough_has_its_time() -> None:
    """After the first bound it is weighed, not refused."""
    app = Reads()
    first_s = 0.5  # what was sent at once must have been read within it, on a busy machine, too
    async with served(app, ConnectionBounds(body_s=first_s, body_bytes_per_s=100)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(POST + b"x" * 9_999)
        await asyncio.sleep(first_s * 1.5)
        writer.write(b"x")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_slow_body_gives_way() -> None:
    app = Reads()
    async with served(app, ConnectionBounds(connections=1)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(POST + b"x" * 10)
        assert (await told(address, POST + b"x" * 10_000)).startswith(b"HTTP/1.1 200 ")
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()


async def test_connections_that_give_way_at_once_end_in_several_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others have their turn in between, however large the crowd is."""
    ends: list[int] = []
    lose = HttpConnection.connection_lost

    def noted(connection: HttpConnection, error: Exception | None) -> None:
        ends[-1] += 1
        lose(connection, error)

    def turn() -> None:
        ends.append(0)
        asyncio.get_running_loop().call_soon(turn)

    monkeypatch.setattr(HttpConnection, "connection_lost", noted)
    turn()
    async with served(App(), ConnectionBounds(connections=320)) as address:
        held = [await asyncio.open_connection(*address) for _ in range(321)]
        shown_out = [reader for reader, _ in held[:20]]
        for reader in shown_out:
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        counts = sorted(count for count in ends if count)
        for _, writer in held:
            writer.close()
    assert sum(counts) == 20
    assert counts[-1] <= 8
