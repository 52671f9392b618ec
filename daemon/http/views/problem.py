"""The body of every error answer: RFC 9457 problem+json."""

from __future__ import annotations

from typing import Final

import msgspec

MEDIA_TYPE: Final = "application/problem+json"
"""Media type of an error's answer (RFC 9457)."""


class ProblemPart(msgspec.Struct, frozen=True, kw_only=True):
    """One of several errors in a request, with its own code, field and fix."""

    code: str
    """Code of the error."""
    what: str
    """The error in words."""
    field: str | None = None
    """Name of the faulty field."""
    where: str | None = None
    """Location of the fault, such as file and line."""
    fix: str | None = None
    """Remedy in words."""
    excerpt: str | None = None
    """The line of the file with a mark under the error."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error answer, with a stable code and a fix."""

    type: str
    """`urn:rftd:error:CODE`."""
    title: str
    """Meaning of the status."""
    status: int
    """HTTP status of the answer."""
    detail: str
    """The error in one sentence."""
    code: str
    """Stable code; more with `rftd explain CODE`."""
    field: str | None = None
    """The wrong part of the request."""
    where: str | None = None
    """Location of the fault, such as file and line."""
    fix: str | None = None
    """Remedy in words."""
    errors: tuple[ProblemPart, ...] = ()
    """All errors, if there are several."""
