"""The commit from which a package's installation was made."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from rftd.ops.decoding import UNREADABLE, json_decoder

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""A commit's hash, SHA-1 or SHA-256."""


class _VcsInfo(msgspec.Struct):
    """The part of an installation's origin about a repository."""

    commit_id: str = ""
    """Hash of the commit."""


class _DirInfo(msgspec.Struct):
    """The part of an installation's origin about a folder."""

    editable: bool = False
    """True for an editable installation."""


class _DirectUrl(msgspec.Struct):
    """The origin of an installation, as recorded by pip and uv."""

    url: str = ""
    """URL of the origin."""
    vcs_info: _VcsInfo | None = None
    """Repository of the origin; None for another origin."""
    dir_info: _DirInfo | None = None
    """Folder of the origin; None for another origin."""


def commit_of(package: str) -> str:
    """Returns the commit of a package's checkout or installation source; empty if unknown.

    For a checkout (an editable installation), the commit checked out at the call, regardless of changed files.
    """
    try:
        text = distribution(package).read_text("direct_url.json")
        installed = json_decoder(_DirectUrl).decode(text or "{}")
    except (PackageNotFoundError, OSError, *UNREADABLE):
        return ""
    if installed.vcs_info is not None:
        return _checked(installed.vcs_info.commit_id)
    url = urlsplit(installed.url)
    # Files copied from a folder belong to no commit known later.
    if url.scheme != "file" or installed.dir_info is None or not installed.dir_info.editable:
        return ""
    try:
        return _head_of(Path(unquote(url.path)) / ".git")
    except (OSError, UnicodeDecodeError):
        return ""


def _head_of(git: Path) -> str:
    """Returns the checked-out commit; `git` is the folder, or the file with its path in a work tree. Raises OSError."""
    if git.is_file():
        git = git.parent / git.read_text().removeprefix("gitdir:").strip()
    common = git / "commondir"
    shared = git / common.read_text().strip() if common.is_file() else git
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return _checked(head)
    name = head.removeprefix("ref:").strip()
    if (shared / name).is_file():
        return _checked((shared / name).read_text().strip())
    packed = (line.split(" ") for line in (shared / "packed-refs").read_text().splitlines())
    return next((_checked(parts[0]) for parts in packed if parts[1:] == [name]), "")


def _checked(commit: str) -> str:
    """Returns the commit if it looks like a git hash, else an empty text."""
    return commit if _COMMIT.fullmatch(commit) else ""
