"""The hash chain of a partition, detecting a lost tail or a flipped byte, and the comparison of remembered heads with a
log.

On Kafka, with several processes writing one partition, no writer knows the record before the next: every record's chain
begins at `GENESIS`, and is a digest of the one record.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from rftd.ops.errors import LogLossError
from rftd.streams.log.topics import Partition

GENESIS: Final = bytes(16)
"""Chain before the first record of a partition."""

_GIL_HELD_SIZE_BYTES: Final = 2047
"""Maximum size of a piece that hashlib hashes without releasing Python's lock."""
_RELEASED_SIZE_BYTES: Final = 128 * 1024
"""Minimum size of a value hashed as one piece, with the lock released; smaller ones are cut to keep the lock."""
# hashlib releases Python's lock for 2048 bytes and more, and a busy event loop gives it back after 5 ms only: for every
# record, the log's writer would wait a thousand times longer than it hashes.

_ONE_PIECE_SIZE_BYTES: Final = _GIL_HELD_SIZE_BYTES - len(GENESIS) - 4
"""Upper bound of a record hashed as one piece: below it, a call costs more than a copy."""


class Mark(NamedTuple):
    """A head: the next offset of a partition, and the chain of the record before that offset."""

    next_offset: int
    chain: bytes


Heads = dict[Partition, Mark]
"""The heads of a log, by partition; an empty partition is absent."""


def link(previous: bytes, head: bytes, value: bytes) -> bytes:
    """Computes the chain after a record: blake2b-16(previous ‖ len(head) as u32 little-endian ‖ head ‖ value)."""
    # The length separates head and value: without it, bytes could move between them without changing the digest.
    if len(head) + len(value) <= _ONE_PIECE_SIZE_BYTES:
        whole = b"".join((previous, len(head).to_bytes(4, "little"), head, value))
        return blake2b(whole, digest_size=16).digest()
    digest = blake2b(previous, digest_size=16)
    digest.update(len(head).to_bytes(4, "little"))
    digest.update(head)
    # A large value takes long enough to let others have the lock; a medium one is hashed in pieces that keep the lock.
    if len(value) <= _GIL_HELD_SIZE_BYTES or len(value) >= _RELEASED_SIZE_BYTES:
        digest.update(value)
    else:
        with memoryview(value) as view:
            for start in range(0, len(value), _GIL_HELD_SIZE_BYTES):
                digest.update(view[start : start + _GIL_HELD_SIZE_BYTES])
    return digest.digest()


def check_mark(partition: Partition, mark: Mark, *, head: Mark, start: Mark) -> None:
    """Compares the remembered head `mark` with a partition's present head and start, without reading records. Raises
    LogLossError.
    """
    if mark.next_offset > head.next_offset:
        raise LogLossError(
            f"{partition}@{mark.next_offset - 1} was acknowledged and is gone: the log ends before {head.next_offset}",
            where=f"{partition}@{head.next_offset}",
            fix="restore the log from a backup; run `rftd verify` to see what remains",
        )
    # Between start and head only the record itself can tell: callers read it.
    for limit in (head, start):
        if mark.next_offset == limit.next_offset and mark.chain != limit.chain:
            raise different(partition, mark)


def different(partition: Partition, mark: Mark) -> LogLossError:
    """Builds the error for a remembered head `mark` whose position now has another record."""
    return LogLossError(
        f"{partition}@{mark.next_offset - 1} is not the record that was acknowledged",
        where=f"{partition}@{mark.next_offset - 1}",
        fix="this is another log, or it was rewritten: restore the right one from a backup",
    )
