"""`TraceContext`: the part of a span sent between processes, as W3C's header `traceparent`."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple
from uuid import UUID

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
"""Form of the header."""
_SAMPLED: Final = 0x01
"""Flag of a sampled trace."""
_FLAG_PLACE: Final = 54
"""Index of the digit with the sampled flag, in the header's first version."""
_EVEN: Final = frozenset("02468ace")
"""Hexadecimal digits of even numbers."""


class TraceContext(NamedTuple):
    """Ids of a span, by which other processes and links refer to it."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    sampled: bool
    """True if the spans of this trace are exported."""

    @property
    def traceparent(self) -> str:
        """The text of the header `traceparent`, version 00."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}"


def parsed(traceparent: str | None) -> TraceContext | None:
    """Returns the context named by a header; None for a malformed one, so a bad header refuses no request."""
    match = _FORM.fullmatch(traceparent.strip()) if traceparent and len(traceparent) <= 512 else None
    # A later version may have more fields, the first version may not, and ff is no version.
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5] is not None):
        return None
    trace_id = int(match[2], 16)
    span_id = int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


def exported(traceparent: str | None) -> TraceContext | None:
    """Returns the header's context if the trace is exported; most headers are rejected without parsing."""
    if traceparent is None or (traceparent.startswith("00-") and traceparent[_FLAG_PLACE : _FLAG_PLACE + 1] in _EVEN):
        return None
    context = parsed(traceparent)
    return context if context is not None and context.sampled else None


def root_of(cause: UUID) -> tuple[int, int]:
    """Returns the ids of the trace and of the root span derived from a cause, equal in every process with the cause.

    A digest, because some bits are equal in all UUIDs, and sampling depends on random bits.
    """
    digest = blake2b(cause.bytes, digest_size=24, person=b"rftd.trace").digest()
    return int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1
