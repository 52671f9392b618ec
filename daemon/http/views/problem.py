"""The body of every answer that is an error: RFC 9457 problem+json."""

from __future__ import annotations

from typing import Final

import msgspec

MEDIA_TYPE: Final = "application/problem+json"


class ProblemPart(msgspec.Struct, frozen=True, kw_only=True):
    """One of several errors that a request has."""

    code: str
    what: str
    field: str | None = None
    where: str | None = None
    fix: str | None = None
    excerpt: str | None = None
    """The line of the file with a mark under it."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is an error."""

    type: str
    """`urn:rftd:error:CODE`."""
    title: str
    """The meaning of the status."""
    status: int
    detail: str
    """The error in one sentence."""
    code: str
    """Stable; `rftd explain CODE` tells more."""
    field: str | None = None
    """The part of the request that is wrong."""
    where: str | None = None
    fix: str | None = None
    errors: tuple[ProblemPart, ...] = ()
    """All of them, if there are several."""
