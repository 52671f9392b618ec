"""The hash chain of a partition, by which a lost tail or a flipped byte is noticed."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from rftd.streams.topics import Partition

GENESIS: Final = bytes(16)
"""The chain before a partition's first record."""


class Mark(NamedTuple):
    """A remembered head: the next offset of a partition and the chain of the record before it."""

    next_offset: int
    chain: bytes


Heads = dict[Partition, Mark]
"""What a survivor remembers of a log; absent partitions are empty."""


def link(previous: bytes, head: bytes, value: bytes) -> bytes:
    """The chain after a record: blake2b-16(previous ‖ len(head) as u32 little-endian ‖ head ‖ value)."""
    digest = blake2b(previous, digest_size=16)
    digest.update(len(head).to_bytes(4, "little"))
    digest.update(head)
    digest.update(value)
    return digest.digest()
