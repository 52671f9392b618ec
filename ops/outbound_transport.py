"""`PublicTransport`: connections of httpx to public addresses only, checked when each connection is made.

A name is resolved once, all addresses are checked, and a direct connection goes to a checked address: later changes of
the name do not matter. The certificate is still checked against the name. A proxy from the environment resolves the
name again itself, so the guarantee does not reach behind a proxy.
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
"""Function returning the IP addresses of a host for a port; empty if there are none."""

_REFUSAL: Final = "it has no address that this experiment may reach"
"""Message for a refused address, and for an unresolvable name as well, so that nobody learns which names exist."""


class PublicTransport(httpx.AsyncBaseTransport):
    """Sends each request to a public or an allowed address; otherwise raises httpx.ConnectError."""

    def __init__(self, allowed: Sequence[str] = (), *, field: str, resolve: Resolve | None = None) -> None:
        """Allows public addresses, and any address of the hosts in `allowed`, written as HOST or HOST:PORT.

        `field` is named by errors; `resolve` replaces the system's resolver.
        """
        self._allowed = tuple(allowed)
        self._field = field
        self._resolve = resolve or _system_addresses
        self._direct_transport = _new_transport()
        self._transports_by_proxy: dict[str, httpx.AsyncHTTPTransport] = {}
        """Transports through proxies by the proxy's URL, created on first use."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Returns the answer to a request.

        Raises ConfigError for a URL refused by its text, httpx.ConnectError for a host with any address that is not
        public, unless the host is allowed, or without addresses.
        """
        url = request.url
        check_url(str(url.copy_with(query=None)), field=self._field, public_only=True, allowed=self._allowed)
        port = url.port or (443 if url.scheme == "https" else 80)
        address = WebAddress(url.scheme, host_of(url.raw_host.decode("ascii"), field=self._field), port)
        addresses = await self._resolve(address.host, port)
        if not names_host(self._allowed, address) and not all(map(is_public, map(ip_address, addresses))):
            raise httpx.ConnectError(_REFUSAL, request=request)
        if (proxy := _proxy_from_environment(url)) is not None:
            # The proxy resolves the name itself; the addresses known here were checked.
            return await self._proxy_transport(proxy).handle_async_request(request)
        failed: httpx.ConnectError | None = None
        for ip in addresses:
            try:
                return await self._direct_transport.handle_async_request(_request_to_address(request, ip))
            except httpx.ConnectError as error:
                failed = error
        raise failed or httpx.ConnectError(_REFUSAL, request=request)

    async def aclose(self) -> None:
        """Closes all connections, direct ones and those through proxies."""
        for transport in (self._direct_transport, *self._transports_by_proxy.values()):
            await transport.aclose()

    def _proxy_transport(self, proxy: str) -> httpx.AsyncHTTPTransport:
        """Returns the transport for a proxy, created on first use."""
        if proxy not in self._transports_by_proxy:
            self._transports_by_proxy[proxy] = _new_transport(proxy)
        return self._transports_by_proxy[proxy]


def _request_to_address(request: httpx.Request, address: str) -> httpx.Request:
    """Returns the request redirected to an address of the host; the certificate is checked against the host's name."""
    # The headers contain the name already.
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")},
    )


def _new_transport(proxy: str | None = None) -> httpx.AsyncHTTPTransport:
    """Returns a transport of httpx without a limit on connections, through a proxy if named."""
    return httpx.AsyncHTTPTransport(proxy=proxy, limits=httpx.Limits(max_connections=None))


def _proxy_from_environment(url: httpx.URL) -> str | None:
    """Returns the proxy's URL for a URL, from the environment variables of most programs; None without one."""
    proxies = getproxies()
    if proxy_bypass(url.netloc.decode("ascii")):
        return None
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


async def _system_addresses(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host, by the system's resolver; empty if unknown."""
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(socket_address[0]) for *_, socket_address in answers))
