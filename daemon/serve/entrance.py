"""`Entrance`: a daemon's HTTP front: tokens, authentication, TLS, and the address published to the user's clients."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from rftd.daemon.http.api.doorkeeper import Doorkeeper
from rftd.daemon.http.api.probes import Gate
from rftd.daemon.http.api.problem import refusal
from rftd.daemon.serve.data_folder import DataFolder, Endpoint
from rftd.daemon.trust.keyring import Keyring
from rftd.daemon.trust.user_state import KnownDaemon, UserState
from rftd.ops.bound_socket import url_of
from rftd.ops.clock import Clock
from rftd.ops.errors import UsageError
from rftd.ops.http_server import serving_http
from rftd.ops.logs import Logger
from rftd.ops.tls import WATCH_S, CertificateFileError, ServerTls

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Host names that only this machine can reach."""


class EntranceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The authentication and TLS options of `rftd serve`."""

    token: str | None = None
    """An owner's token in addition to the one in the data folder; None: no additional token. Never printed."""
    allow_hosts: tuple[str, ...] = ()
    """Host names under which clients reach the daemon (`--allow-host`), in addition to `localhost` and the
    certificate's names.
    """
    tls: ServerTls | None = None
    """Certificate and key for HTTPS; None: plain HTTP."""
    tls_terminated_elsewhere: bool = False
    """True if a proxy in front of the daemon terminates TLS."""
    unauthenticated: bool = False
    """True if requests need no token, and every request has the owner's rights (`--unsafe-allow-unauthenticated`)."""

    @property
    def hosts(self) -> frozenset[str]:
        """Host names accepted besides `localhost`, in lower case: those of `allow_hosts` and of the certificate."""
        return frozenset(name.lower() for name in (*self.allow_hosts, *(self.tls.names if self.tls else ())))


class Entrance:
    """The HTTP front of one data folder's daemon: tokens, TLS, and the gate in front of the API."""

    def __init__(self, folder: DataFolder, options: EntranceOptions, *, clock: Clock, logger: Logger) -> None:
        """Creates the owner's token if missing. Raises TokenFileError. Blocks."""
        self.folder_id = folder.id
        self._folder = folder
        self._options = options
        self._clock = clock
        self._logger = logger
        keyring = Keyring(
            folder.root,
            clock=clock,
            logger=logger,
            from_environ=options.token,
            secure=options.tls is not None or options.tls_terminated_elsewhere,
            # Cookies are shared by all ports of a host: each daemon has a separate name.
            cookie=f"rftd_session_{self.folder_id}",
        )
        if options.unauthenticated:
            logger.warning("access.unauthenticated", fix="leave out --unsafe-allow-unauthenticated")
        self.keyring = None if options.unauthenticated else keyring
        """Valid tokens and their owners; None if requests need no token."""
        self.keeper = Doorkeeper(self.keyring, hosts=options.hosts)
        self.url = ""
        """URL of the daemon; empty before `answer`."""
        self.gate = Gate(folder=self.folder_id, doorkeeper=self.keeper)
        """The served ASGI application: probes and refusals by itself until the API is ready, then the API."""
        self._owner_token = keyring.tokens.owner_token

    async def answer(self, front: AsyncExitStack, bound: socket.socket) -> None:
        """Starts serving the gate on the socket `bound`, until the exit stack `front` is closed; publishes the address
        for clients.

        The address is written to endpoint.json in the data folder and to the user's list of known daemons.
        """
        await front.enter_async_context(serving_http(self.gate, bound, refusal=refusal, tls=self._options.tls))
        url = self.url = url_of(bound, self._options.tls)
        endpoint = Endpoint(url=url, pid=os.getpid(), folder=self.folder_id)
        await asyncio.to_thread(self._folder.announce, endpoint)
        root = str(self._folder.root)
        known_daemon = KnownDaemon(
            url=url, folder=root, folder_id=self.folder_id, pid=os.getpid(), token=self._owner_token
        )
        state = UserState(os.environ)
        try:
            await asyncio.to_thread(state.record, known_daemon)
        except OSError as error:
            # For a user without a home folder, as in containers, clients find the daemon by its data folder.
            self._logger.info("user_state.unwritten", folder=str(state.folder), reason=str(error))
            return
        front.push_async_callback(asyncio.to_thread, state.forget, root)

    async def watch_certificate(self) -> None:
        """Reloads the certificate whenever its files change, until cancelled.

        An invalid certificate is logged once, and the previous one stays in use.
        """
        tls = self._options.tls
        last_error = ""
        while True:
            await self._clock.sleep(WATCH_S)
            try:
                if tls is not None and await asyncio.to_thread(tls.renew):
                    self.keeper.hosts = self._options.hosts
                    self._logger.info("tls.renewed")
                    last_error = ""
            except CertificateFileError as error:
                if error.what != last_error:
                    last_error = error.what
                    self._logger.error("tls.not_renewed", where=error.where, reason=error.what)


def check_reach(host: str, options: EntranceOptions) -> None:
    """Raises UsageError for a `host` beyond loopback without TLS, because tokens would be sent as plain text."""
    if host not in LOOPBACK and options.tls is None and not options.tls_terminated_elsewhere:
        raise UsageError(
            f"{host} is reachable from outside, and without TLS others can read the traffic",
            field="--host",
            fix="serve on 127.0.0.1, or give --tls-cert and --tls-key, or --tls-terminated-elsewhere behind a proxy",
        )
