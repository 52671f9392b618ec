"""The daemon's address and token: as named, else as written in its folder, else of this user's daemon, else the default
port.

The last two are used only if no folder is named. A token goes only to the URL it belongs to.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rftd.daemon.cli.settings import Settings, data_folder, names_folder
from rftd.daemon.serve.data_folder import FOLDER_HEADER, DataFolder
from rftd.daemon.trust.token_file import TokenFile, TokenFileError
from rftd.daemon.trust.user_state import UserState
from rftd.ops.errors import UnreachableError, UsageError
from rftd.ops.redaction import Secret

DEFAULT_URL: Final = "http://127.0.0.1:7070"
"""Address of a daemon started without --host and --port."""
ENDPOINT_FILE: Final = "endpoint.json"
"""File in the data folder with the daemon's present address."""
LISTENS_TIMEOUT_S: Final = 5.0
"""Default time-out in seconds of a trial connection."""


class Address(NamedTuple):
    """URL, folder and token of a daemon; empty strings for unknown parts."""

    url: str
    """URL without a slash at the end."""
    folder: str = ""
    """Data folder containing this URL as its daemon's, in the user's spelling; empty if none does."""
    folder_id: str = ""
    """Id of the data folder; empty if unknown."""
    token: Secret = Secret("")
    """Token belonging to this URL; empty if unknown."""

    @property
    def headers(self) -> dict[str, str]:
        """The token's header, and the header for a misdirected-request check by another folder's daemon, if known.

        Raises UsageError for a token not allowed in headers.
        """
        folder = {FOLDER_HEADER: self.folder_id} if self.folder_id else {}
        return folder | authorization(self.token.reveal())


class NoDaemonError(UnreachableError):
    """No daemon serves from the named folder: none has written its address there."""

    def __init__(self, folder: str) -> None:
        """`folder` is the data folder, as the user wrote it."""
        super().__init__(
            f"no daemon serves from {folder}: none has written its address there",
            where=str(Path(folder) / ENDPOINT_FILE),
            fix=f"start one with `rftd serve --data {shlex.quote(folder)}`, or name a daemon's address with --server",
        )


class OtherDaemonError(NoDaemonError):
    """The daemon answering at a folder's recorded address belongs to another folder."""

    def __init__(self, address: Address) -> None:
        """`address` is the address recorded in the folder."""
        UnreachableError.__init__(
            self,
            f"no daemon serves from {address.folder}: at the address that is written there, {address.url}, answers the"
            " daemon of another folder",
            where=str(Path(address.folder) / ENDPOINT_FILE),
            fix=f"start this folder's with `rftd serve --data {shlex.quote(address.folder)}`, or ask the other one with"
            f" --server {address.url}",
        )


def find_daemon(settings: Settings, environ: Mapping[str, str]) -> str:
    """Returns the URL of `find_address`, for messages and for programs without requests."""
    return find_address(settings, environ).url


def find_address(settings: Settings, environ: Mapping[str, str]) -> Address:
    """Returns the daemon's address, with its token.

    Raises UsageError for an invalid URL, and NoDaemonError for a named folder without a daemon's address.
    """
    folder = data_folder(settings, environ)
    named = settings.server or environ.get("RFTD_SERVER")
    announced = _announced_address(folder)
    address = Address(named) if named else announced
    if address is None and names_folder(settings, environ):
        # The default port may belong to the daemon of another folder, which must not receive requests meant for this
        # one.
        raise NoDaemonError(folder)
    address = _checked_address(address or _own_daemon(environ) or Address(DEFAULT_URL))
    if token := environ.get("RFTD_TOKEN", ""):
        return address._replace(token=Secret(token))
    return address._replace(token=Secret(_token_for(address.url, announced, environ)))


def find_folder(settings: Settings, environ: Mapping[str, str]) -> str:
    """Returns the data folder of the daemon of `find_address`, for verbs reading the log themselves.

    A folder that is named, or present here with a log or an address, comes first, as in `find_address`.
    """
    folder = data_folder(settings, environ)
    if (
        names_folder(settings, environ)
        or _announced_address(folder) is not None
        or DataFolder(Path(folder)).log.is_dir()
    ):
        return folder
    if url := settings.server or environ.get("RFTD_SERVER"):
        url = url.rstrip("/")
        return next((daemon.folder for daemon in UserState(environ).daemons() if daemon.url == url), folder)
    user_daemon = _own_daemon(environ)
    return user_daemon.folder if user_daemon is not None else folder


def _own_daemon(environ: Mapping[str, str]) -> Address | None:
    """Returns the only daemon of this user, or among several the one at the default address."""
    daemons = UserState(environ).daemons()
    chosen = daemons if len(daemons) == 1 else [daemon for daemon in daemons if daemon.url == DEFAULT_URL]
    return Address(chosen[0].url, chosen[0].folder, chosen[0].folder_id) if chosen else None


def _token_for(url: str, announced: Address | None, environ: Mapping[str, str]) -> str:
    """Returns the owner's token for exactly this URL: from the folder with it, else from this user's daemon there."""
    token = ""
    if announced is not None and announced.url == url:
        with suppress(FileNotFoundError, TokenFileError):
            token = TokenFile(Path(announced.folder)).owner_token()
    if not token:
        token = next((daemon.token for daemon in UserState(environ).daemons() if daemon.url == url), "")
    # A killed daemon leaves its address behind, and another user's program may have its port by now.
    return "" if token and is_others_port(url) else token


def _checked_address(address: Address) -> Address:
    """Returns the address with a scheme, http by default, and without a slash at the end of its URL. Raises UsageError
    for an invalid URL.
    """
    url = address.url.rstrip("/")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or url in ("http:", "https:"):
        raise no_address(url)
    return address._replace(url=parts.geturl())


def no_address(url: str) -> UsageError:
    """Returns the error for a URL without a possible daemon."""
    return UsageError(f"{url!r} is not the address of a daemon", field="--server", fix=f"for example {DEFAULT_URL}")


def _announced_address(folder: str) -> Address | None:
    """Returns the address written into this folder by its daemon when it began to listen; None if it is missing or
    unreadable.
    """
    try:
        endpoint = json.loads((Path(folder) / ENDPOINT_FILE).read_text())
        return Address(str(endpoint["url"]), folder, str(endpoint.get("folder", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def somebody_listens(url: str, *, timeout_s: float = LISTENS_TIMEOUT_S) -> bool:
    """True if a connection to this address succeeds, found without importing an HTTP client."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=timeout_s):
            return True
    except (OSError, UnicodeError):  # UnicodeError: a host name no name server can encode
        return False


def authorization(token: str) -> dict[str, str]:
    """Returns the header with the token, if there is one. Raises UsageError for a token not allowed in headers."""
    if not (token.isascii() and token.isprintable()):
        raise UsageError(
            "it holds a character that no header can carry", field="RFTD_TOKEN", fix="use the daemon's token"
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def trusted_by(url: str) -> ssl.SSLContext | bool:
    """Returns the certificates trusted by a client of `url`: those of SSL_CERT_FILE or SSL_CERT_DIR, else True for the
    default ones.

    An empty context for an address without TLS: reading the default ones takes longer than most answers.
    """
    if urlsplit(url).scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context()  # OpenSSL reads both variables by itself
    return True


_LISTENING_STATE: Final = "0A"
"""State of a listening socket in the kernel's tables."""
_SOCKET_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
"""Tables of TCP sockets of the kernel."""


def is_others_port(url: str) -> bool:
    """True if a user other than this one or root listens on the loopback port of `url`.

    A killed daemon leaves its address in its folder, and anybody on the machine can take the port: the owner's token
    must not go there. False if the kernel does not name the listener.
    """
    parts = urlsplit(url)
    if not _is_loopback(parts.hostname or "") or parts.port is None:
        return False
    users = set[int]()
    for table in _SOCKET_TABLES:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING_STATE and int(fields[1].rpartition(":")[2], 16) == parts.port:
                users.add(int(fields[7]))
    return bool(users - {0, os.geteuid()})


def _is_loopback(host: str) -> bool:
    """True for the host name `localhost` and for a loopback address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
