"""`Transport`: requests over HTTP, blocking or on an event loop, under one interface of coroutines."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import httpx

from rftd.daemon.http.client.address import Address, trusted_by


class Transport(Protocol):
    """Requests over HTTP to one address."""

    def build(self, method: str, path: str, **parts: Any) -> httpx.Request:
        """Returns a request to the present address."""
        ...

    async def send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """Returns the response; with `stream`, before its body. Raises httpx.TransportError."""
        ...

    async def read(self, response: httpx.Response) -> bytes:
        """Returns the whole body of a streamed response."""
        ...

    def lines(self, response: httpx.Response) -> AsyncGenerator[str, None]:
        """Yields the lines of a streamed response as they come."""
        ...

    async def end(self, response: httpx.Response) -> None:
        """Closes a streamed response."""
        ...

    async def pause(self, seconds: float) -> None:
        """Waits between two attempts."""
        ...

    def move(self, address: Address) -> None:
        """Directs later requests to another address."""
        ...

    async def close(self) -> None:
        """Closes all connections."""
        ...


class BlockingTransport:
    """Requests of programs without an event loop: each coroutine blocks, and ends at once."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        """Raises httpx.InvalidURL."""
        self._http = httpx.Client(**_client_options(address, timeout_s))
        """Blocking HTTP client with the daemon's address and headers."""

    def build(self, method: str, path: str, **parts: Any) -> httpx.Request:
        """See `Transport.build`."""
        return self._http.build_request(method, path, **parts)

    async def send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """See `Transport.send`."""
        return self._http.send(request, stream=stream)

    async def read(self, response: httpx.Response) -> bytes:
        """See `Transport.read`."""
        return response.read()

    async def lines(self, response: httpx.Response) -> AsyncGenerator[str, None]:
        """See `Transport.lines`."""
        for line in response.iter_lines():
            yield line

    async def end(self, response: httpx.Response) -> None:
        """See `Transport.end`."""
        response.close()

    async def pause(self, seconds: float) -> None:
        """See `Transport.pause`."""
        time.sleep(seconds)  # noqa: ASYNC251 - no loop runs these coroutines

    def move(self, address: Address) -> None:
        """See `Transport.move`."""
        self._http.base_url = httpx.URL(address.url)
        self._http.headers.update(address.headers)

    async def close(self) -> None:
        """See `Transport.close`."""
        self._http.close()


class LoopTransport:
    """Requests of programs on an event loop."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        """Raises httpx.InvalidURL."""
        self._http = httpx.AsyncClient(**_client_options(address, timeout_s))
        """Asynchronous HTTP client with the daemon's address and headers."""

    def build(self, method: str, path: str, **parts: Any) -> httpx.Request:
        """See `Transport.build`."""
        return self._http.build_request(method, path, **parts)

    async def send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        """See `Transport.send`."""
        return await self._http.send(request, stream=stream)

    async def read(self, response: httpx.Response) -> bytes:
        """See `Transport.read`."""
        return await response.aread()

    async def lines(self, response: httpx.Response) -> AsyncGenerator[str, None]:
        """See `Transport.lines`."""
        async for line in response.aiter_lines():
            yield line

    async def end(self, response: httpx.Response) -> None:
        """See `Transport.end`."""
        await response.aclose()

    async def pause(self, seconds: float) -> None:
        """See `Transport.pause`."""
        import asyncio

        await asyncio.sleep(seconds)

    def move(self, address: Address) -> None:
        """See `Transport.move`."""
        self._http.base_url = httpx.URL(address.url)
        self._http.headers.update(address.headers)

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._http.aclose()


def _client_options(address: Address, timeout_s: float) -> dict[str, Any]:
    # A proxy from the environment is for the internet, not for a nearby daemon.
    """Returns the arguments of an HTTP client for a daemon's address."""
    return {
        "base_url": address.url,
        "timeout": timeout_s,
        "headers": address.headers,
        "verify": trusted_by(address.url),
        "trust_env": False,
    }
