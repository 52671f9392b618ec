"""Connections of experiments that are not the owner's: to public addresses, and to the very one that was checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest

from rftd.ops.errors import ConfigError
from rftd.ops.outbound_transport import PublicTransport

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Names:
    """A resolver whose answers may change from one question to the next."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


@asynccontextmanager
async def listener(
    answer: bytes = OK,
) -> AsyncIterator[tuple[int, list[str]]]:
    heard: list[str] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


async def asked(url: str, transport: PublicTransport) -> httpx.Response:
    async with httpx.AsyncClient(transport=transport, timeout=10.0) as client:
        return await client.get(url)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "0.0.0.0"])
async def test_a_name_that_leads_to_a_private_address_is_not_connected_to(address: str) -> None:
    async with listener() as (port, heard):
        with pytest.raises(httpx.ConnectError):
            await asked(f"http://a.example.com:{port}/", PublicTransport(field="f", resolve=Names([address])))
        with pytest.raises(httpx.ConnectError):
            names = Names(["1.1.1.1", address])
            await asked(f"http://a.example.com:{port}/", PublicTransport(field="f", resolve=names))
    assert heard == []


async def test_a_name_that_leads_nowhere_is_refused_in_the_same_words() -> None:
    told = set()
    for addresses in ([], ["10.0.0.1"]):
        with pytest.raises(httpx.ConnectError) as refused:
            await asked("http://a.example.com/", PublicTransport(field="f", resolve=Names(addresses)))
        told.add(str(refused.value))
    assert len(told) == 1


async def test_a_private_address_is_refused_by_its_text_before_anything_is_resolved() -> None:
    names = Names(["1.1.1.1"])
    for url in ("http://127.0.0.1/", "http://localhost/", "http://0x7f.1/"):
        with pytest.raises(ConfigError):
            await asked(url, PublicTransport(field="f", resolve=names))
    assert names.asked == 0


async def test_the_connection_goes_to_the_address_that_was_checked_under_the_name() -> None:
    """A name that leads elsewhere a moment later is not asked again."""
    async with listener() as (port, heard):
        names = Names(["127.0.0.1"], ["10.0.0.1"])
        transport = PublicTransport([f"a.example.com:{port}"], field="f", resolve=names)
        answer = await asked(f"http://a.example.com:{port}/v1/x", transport)
    assert (answer.status_code, names.asked) == (200, 1)
    assert heard[0].startswith("GET /v1/x HTTP/1.1\r\n")
    assert f"Host: a.example.com:{port}\r\n" in heard[0]


async def test_the_next_address_of_a_name_is_tried() -> None:
    async with listener() as (port, _heard):
        transport = PublicTransport(["a.example.com"], field="f", resolve=Names(["::1", "127.0.0.1"]))
        assert (await asked(f"http://a.example.com:{port}/", transport)).status_code == 200


async def test_a_redirect_leads_nowhere_that_an_address_may_not() -> None:
    async with listener() as (aim, heard):
        redirect = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{aim}/\r\nContent-Length: 0\r\n\r\n".encode()
        async with listener(redirect) as (port, _):
            transport = PublicTransport([f"127.0.0.1:{port}"], field="f")
            async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
                with pytest.raises(ConfigError):
                    await client.get(f"http://127.0.0.1:{port}/")
    assert heard == []


async def test_the_owners_proxy_is_asked_for_names_that_it_alone_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with listener() as (port, heard):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        answer = await asked("http://a.example.com/x", PublicTransport(field="f", resolve=Names([])))
        assert answer.status_code == 200
        with pytest.raises(httpx.ConnectError):
            await asked("http://a.example.com/x", PublicTransport(field="f", resolve=Names(["10.0.0.1"])))
    assert [line.split("\r\n")[0] for line in heard] == ["GET http://a.example.com/x HTTP/1.1"]
