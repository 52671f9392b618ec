"""`Asset`: a script, style or licence of the page, read once, with the digest in its address."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent
"""Folder of the page's scripts, styles and templates."""
_FOLDERS: Final = ("static", "vendor")
"""Folders of served files below `FOLDER`."""
_MEDIA_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".LICENSE": "text/plain; charset=utf-8",
}
"""Media type of a served file by its suffix."""
_DIGEST_DIGITS: Final = 12
"""Number of hexadecimal digits of a file's digest in its address."""
_IMPORT: Final = re.compile(rb"(?<=from '\./)(\w+\.js)(?=')")
"""The file in an import of a module."""


class Asset(NamedTuple):
    """A file of the page with its media type."""

    body: bytes
    """Content of the file as served, with imports addressed by digest."""
    media_type: str
    """Media type of the file."""
    digest: str
    """First digits of the SHA-256 of the file."""


@cache
def assets() -> dict[str, Asset]:
    """Returns the files of the page by name."""
    paths = [path for folder in _FOLDERS for path in sorted((FOLDER / folder).iterdir()) if path.suffix in _MEDIA_TYPES]
    return {path.name: _asset(path) for path in paths}


def address_of(name: str) -> str:
    """Returns the path of a file with its digest: browsers may keep the answer for ever."""
    return f"/static/{name}?v={assets()[name].digest}"


@cache
def release() -> str:
    """Returns a digest of all files of the page: a tab of other scripts is one of another release."""
    digests = "".join(asset.digest for asset in assets().values())
    return hashlib.sha256(digests.encode()).hexdigest()[:_DIGEST_DIGITS]


def _addressed(path: Path) -> bytes:
    """Returns the name of an imported module with its digest."""
    return f"{path.name}?v={_asset(path).digest}".encode()


def _asset(path: Path) -> Asset:
    """Reads a file of the page, with imports of a script replaced by addresses with digests."""
    body = path.read_bytes()
    if path.suffix == ".js" and path.parent.name == "static":
        # Under two addresses a module would be read, and run, twice.
        body = _IMPORT.sub(lambda match: _addressed(path.with_name(match[1].decode())), body)
    digest = hashlib.sha256(body).hexdigest()[:_DIGEST_DIGITS]
    return Asset(body, _MEDIA_TYPES[path.suffix], digest)
