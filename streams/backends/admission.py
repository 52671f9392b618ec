"""What an append must satisfy before anything is written, and how a large one is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rftd.ops import limits
from rftd.ops.errors import CodecError
from rftd.streams.envelope import Draft


def admit(drafts: Sequence[Draft]) -> int:
    """The bytes of an append that is within the limits. Raises CodecError for one that is not."""
    if len(drafts) > limits.APPEND_RECORDS:
        raise CodecError(
            f"an append of {len(drafts)} records is over the limit of {limits.APPEND_RECORDS}",
            fix="append in several calls",
        )
    total = 0
    for draft in drafts:
        size = len(draft.head) + len(draft.value)
        if size > limits.RECORD_SIZE_BYTES:
            raise CodecError(
                f"record {draft.id} of {size} bytes is over the limit of {limits.RECORD_SIZE_BYTES}",
                where=str(draft.partition),
                fix="store large bytes as an artifact and append its reference",
            )
        total += size
    return total


def split(drafts: Sequence[Draft], size_bytes: int) -> Iterator[Sequence[Draft]]:
    """The drafts in order, cut into runs of at most `size_bytes` (or of one record)."""
    start = total = 0
    for index, draft in enumerate(drafts):
        size = len(draft.head) + len(draft.value)
        if index > start and total + size > size_bytes:
            yield drafts[start:index]
            start, total = index, 0
        total += size
    if start < len(drafts):
        yield drafts[start:]
