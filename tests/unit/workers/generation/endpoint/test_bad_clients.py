"""Clients that speak HTTP badly, or hardly: each is refused or left, and the next one is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.types import Message
from synthetic.models.scripted_engine import Asker, ScriptedEngine, asking, running_endpoint, user

from rftd.ops import limits
from rftd.workers.generation.endpoint.server import CallApp

pytestmark = pytest.mark.anyio
BODY = json.dumps({"messages": [user("a")]}).encode()


@contextlib.asynccontextmanager
async def connected(asker: Asker) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    place = urlsplit(asker.served.base_url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def head(asker: Asker, size: int | str, *more: str, key: str | None = None) -> bytes:
    shown = asker.served.api_key if key is None else key
    lines = [f"Authorization: Bearer {shown}", f"Content-Length: {size}", *more]
    return ("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + "".join(f"{each}\r\n" for each in lines)).encode()


async def told(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """The status and the error object of a reply."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    size = int(lines.partition("content-length: ")[2].split()[0])
    body = await reader.readexactly(size)
    assert b"Traceback" not in body
    return int(lines.split()[1]), json.loads(body)["error"]


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends it: a stranger is told that it is one."""
    monkeypatch.setattr(limits, "ENDPOINT_BODY_S", 0.2)
    engine = ScriptedEngine()
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        for key, status, code in ((None, 408, "request_timeout"), ("sk-wrong", 401, "invalid_api_key")):
            async with connected(asker) as (reader, writer):
                writer.write(head(asker, 1000, key=key) + b"\r\n" + BODY)
                found, error = await told(reader)
                assert (found, error["code"]) == (status, code)
        assert not engine.requests
        await asker.chat(user("a"))


async def test_a_client_that_hangs_up_within_its_body_asks_nothing() -> None:
    """Though what it sent is a whole question."""
    engine = ScriptedEngine()
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        async with connected(asker) as (_, writer):
            writer.write(head(asker, 1000) + b"\r\n" + BODY)
            await writer.drain()
        await asker.chat(user("b"))
        assert len(engine.requests) == 1


@pytest.mark.parametrize("stranger", [False, True])
async def test_a_client_that_is_gone_is_sent_nothing(*, stranger: bool) -> None:
    """Neither that its body is not complete, nor that its key opens nothing."""
    messages = iter([{"type": "http.request", "body": BODY, "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Message] = []

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        sent.append(message)

    async with running_endpoint() as endpoint, asking(endpoint, ScriptedEngine()) as asker:
        key = "sk-wrong" if stranger else asker.served.api_key
        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        await CallApp(endpoint.calls_of)(scope, receive, send)
    assert not sent


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\n" + b"X: " + b"x" * 200_000,
        b"POST /v1/chat/completions HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(20_000)),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["endless header", "endless headers", "TLS", "negative length"],
)
async def test_what_is_no_request_is_refused_and_the_next_one_answered(sent: bytes) -> None:
    engine = ScriptedEngine()
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        async with connected(asker) as (reader, writer):
            writer.write(sent)
            reply = b""
            # The server closes the connection; if more was sent than it read, that may overtake its reply.
            with contextlib.suppress(ConnectionResetError):
                reply = await reader.read()
            assert reply[:10] in (b"", b"HTTP/1.1 4")
            assert b"Traceback" not in reply
        await asker.chat(user("a"))
        assert len(engine.requests) == 1


async def test_an_idempotency_key_that_comes_with_two_bodies_at_once_answers_one_of_them() -> None:
    engine = ScriptedEngine(hold=True)
    async with running_endpoint() as endpoint, asking(endpoint, engine) as asker:
        async with asyncio.TaskGroup() as calls:
            key = {"Idempotency-Key": "k"}
            bodies = [{"messages": [user(str(number % 2))]} for number in range(20)]
            asked = [
                calls.create_task(asker.client.post("/chat/completions", json=body, headers=key)) for body in bodies
            ]
            while sum(task.done() for task in asked) < 10:
                await asyncio.wait([task for task in asked if not task.done()], return_when=asyncio.FIRST_COMPLETED)
            engine.go.set()
        assert sorted(task.result().status_code for task in asked) == [200] * 10 + [422] * 10
        assert len(engine.requests) == 1


async def test_what_is_no_http_is_told_so_as_clients_of_openai_understand_it() -> None:
    async with running_endpoint() as endpoint, asking(endpoint, ScriptedEngine()) as asker:
        async with connected(asker) as (reader, writer):
            writer.write(b"POST\r\n\r\n")
            status, error = await told(reader)
        assert status == 400
        assert error["type"] == "invalid_request_error"
        await asker.chat(user("a"))
