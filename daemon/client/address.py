"""The daemon's address: the one that was given, else the one in its folder, else the usual port.

The usual port is asked only where nobody named a folder.
"""

from __future__ import annotations

import json
import shlex
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rftd.daemon.data_folder import FOLDER_HEADER
from rftd.daemon.settings import Settings, data_folder, names_folder
from rftd.ops.errors import UnreachableError, UsageError

DEFAULT_URL: Final = "http://127.0.0.1:7070"
ENDPOINT_FILE: Final = "endpoint.json"
LISTENS_TIMEOUT_S: Final = 5.0


class Address(NamedTuple):
    """The place of a daemon."""

    url: str
    """Its URL, without a slash at its end."""
    folder: str = ""
    """The data folder that names this URL as its daemon's, as a person names it; empty if no folder does."""
    folder_id: str = ""
    """The id of that folder; empty if an earlier release wrote it."""

    @property
    def headers(self) -> dict[str, str]:
        """The header by which the daemon of another folder knows that it is not meant, if there is an id."""
        return {FOLDER_HEADER: self.folder_id} if self.folder_id else {}


class NoDaemonError(UnreachableError):
    """No daemon serves from the folder that was named: none has written its address there."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"no daemon serves from {folder}: none has written its address there",
            where=str(Path(folder) / ENDPOINT_FILE),
            fix=f"start one with `rftd serve --data {shlex.quote(folder)}`, or name a daemon's address with --server",
        )


class OtherDaemonError(NoDaemonError):
    """The daemon that answers at the address written in a folder is the one of another folder."""

    def __init__(self, address: Address) -> None:
        UnreachableError.__init__(
            self,
            f"no daemon serves from {address.folder}: at the address that is written there, {address.url}, answers the"
            " daemon of another folder",
            where=str(Path(address.folder) / ENDPOINT_FILE),
            fix=f"start this folder's with `rftd serve --data {shlex.quote(address.folder)}`, or ask the other one with"
            f" --server {address.url}",
        )


def find_daemon(settings: Settings, environ: Mapping[str, str]) -> str:
    """The URL of `find_address`."""
    return find_address(settings, environ).url


def find_address(settings: Settings, environ: Mapping[str, str]) -> Address:
    """The daemon's address.

    Raises UsageError for one that is no URL, and NoDaemonError for a named folder in which no daemon wrote its address.
    """
    folder = data_folder(settings, environ)
    named = settings.server or environ.get("RFTD_SERVER")
    given = Address(named) if named else _announced(folder)
    if given is None and names_folder(settings, environ):
        # At the usual port may be the daemon of another folder, which must not be given what is meant for this one.
        raise NoDaemonError(folder)
    given = given or Address(DEFAULT_URL)
    url = given.url.rstrip("/")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        _ = parts.port  # raises ValueError for a port that is no number
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or url in ("http:", "https:"):
        raise no_address(url)
    return given._replace(url=parts.geturl())


def no_address(url: str) -> UsageError:
    """The error for a URL at which no daemon can be."""
    return UsageError(f"{url!r} is no address of a daemon", field="--server", fix=f"for example {DEFAULT_URL}")


def _announced(folder: str) -> Address | None:
    """The address that a daemon of this folder wrote down when it began to listen."""
    try:
        written = json.loads((Path(folder) / ENDPOINT_FILE).read_text())
        return Address(str(written["url"]), folder, str(written.get("folder", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def somebody_listens(url: str, *, timeout_s: float = LISTENS_TIMEOUT_S) -> bool:
    """True if a connection to that address can be made: to ask costs nobody the import of an HTTP client."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=timeout_s):
            return True
    except (OSError, UnicodeError):  # the latter of a name that no name server knows how to spell
        return False


def trusted_by(url: str) -> ssl.SSLContext | bool:
    """The certificates that a client of `url` trusts: the system's, and nobody's where the address needs none.

    Reading the system's takes longer than most answers.
    """
    return True if urlsplit(url).scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
