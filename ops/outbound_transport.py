"""`PublicTransport`: connections of httpx to public addresses only, checked when each connection is made.

A name is resolved once, all addresses are checked, and the connection goes to a checked address: later changes of the
name do not matter. The certificate is still checked against the name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import Final, TypeAlias
from urllib.request import getproxies, proxy_bypass

import httpx

from rftd.ops.outbound import WebAddress, check_url, host_of, is_public, names_host

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the IP addresses of a name, for a port; empty if there are none."""

_REFUSED: Final = "it has no address that this experiment may reach"
"""Used for an unresolvable name as well, so that nobody learns which names exist."""


class PublicTransport(httpx.AsyncBaseTransport):
    """Sends each request to a public or an allowed address; otherwise raises httpx.ConnectError."""

    def __init__(self, allowed: Sequence[str] = (), *, field: str, resolve: Resolve | None = None) -> None:
        """`allowed` are hosts, as HOST or HOST:PORT, that may have any address; `field` is named by errors."""
        self._allowed = tuple(allowed)
        self._field = field
        self._resolve = resolve or _resolved
        self._direct = _transport()
        self._proxied: dict[str, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Returns the answer to a request. Raises ConfigError for an address refused by its text."""
        url = request.url
        check_url(str(url.copy_with(query=None)), field=self._field, public_only=True, allowed=self._allowed)
        port = url.port or (443 if url.scheme == "https" else 80)
        address = WebAddress(url.scheme, host_of(url.raw_host.decode("ascii"), field=self._field), port)
        addresses = await self._resolve(address.host, port)
        if not names_host(self._allowed, address) and not all(map(is_public, map(ip_address, addresses))):
            raise httpx.ConnectError(_REFUSED, request=request)
        if (proxy := _proxy_of(url)) is not None:
            # The proxy resolves the name itself; the addresses known here were checked.
            return await self._through(proxy).handle_async_request(request)
        failed: httpx.ConnectError | None = None
        for ip in addresses:
            try:
                return await self._direct.handle_async_request(_to(request, ip))
            except httpx.ConnectError as error:
                failed = error
        raise failed or httpx.ConnectError(_REFUSED, request=request)

    async def aclose(self) -> None:
        """Closes all connections, direct ones and those through proxies."""
        for transport in (self._direct, *self._proxied.values()):
            await transport.aclose()

    def _through(self, proxy: str) -> httpx.AsyncHTTPTransport:
        """Returns the transport for a proxy, created on first use."""
        if proxy not in self._proxied:
            self._proxied[proxy] = _transport(proxy)
        return self._proxied[proxy]


def _to(request: httpx.Request, address: str) -> httpx.Request:
    """Returns the request redirected to an address of the host; the certificate is checked against the host's name."""
    # The headers contain the name already.
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")},
    )


def _transport(proxy: str | None = None) -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(proxy=proxy, limits=httpx.Limits(max_connections=None))


def _proxy_of(url: httpx.URL) -> str | None:
    """Returns the owner's proxy for a URL, as found by other programs in the environment."""
    proxies = getproxies()
    if proxy_bypass(url.netloc.decode("ascii")):
        return None
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


async def _resolved(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host, by the system's resolver; empty if unknown."""
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(socket_address[0]) for *_, socket_address in answers))
