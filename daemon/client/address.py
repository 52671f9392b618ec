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
from typing import Final
from urllib.parse import urlsplit

from rftd.daemon.settings import Settings, data_folder, names_folder
from rftd.ops.errors import UnreachableError, UsageError

DEFAULT_URL: Final = "http://127.0.0.1:7070"
ENDPOINT_FILE: Final = "endpoint.json"
LISTENS_TIMEOUT_S: Final = 5.0


class NoDaemonError(UnreachableError):
    """No daemon serves from the folder that was named: none has written its address there."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"no daemon serves from {folder}: none has written its address there",
            where=str(Path(folder) / ENDPOINT_FILE),
            fix=f"start one with `rftd serve --data {shlex.quote(folder)}`, or name a daemon's address with --server",
        )


def find_daemon(settings: Settings, environ: Mapping[str, str]) -> str:
    """The daemon's URL, without a slash at its end.

    Raises UsageError for one that is no URL, and NoDaemonError for a named folder in which no daemon wrote its address.
    """
    given = settings.server or environ.get("RFTD_SERVER") or _announced(Path(data_folder(settings, environ)))
    if given is None and names_folder(settings, environ):
        # At the usual port may be the daemon of another folder, which must not be given what is meant for this one.
        raise NoDaemonError(data_folder(settings, environ))
    url = (given or DEFAULT_URL).rstrip("/")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        _ = parts.port  # raises ValueError for a port that is no number
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or url in ("http:", "https:"):
        raise no_address(url)
    return parts.geturl()


def no_address(url: str) -> UsageError:
    """The error for a URL at which no daemon can be."""
    return UsageError(f"{url!r} is no address of a daemon", field="--server", fix=f"for example {DEFAULT_URL}")


def _announced(folder: Path) -> str | None:
    """The address that a daemon of this folder wrote down when it began to listen."""
    try:
        written = json.loads((folder / ENDPOINT_FILE).read_text())
        return str(written["url"])
    except (OSError, ValueError, KeyError, TypeError):
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
