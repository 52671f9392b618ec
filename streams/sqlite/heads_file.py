"""The heads remembered by the log itself, in a small file beside its database.

SQLite takes a damaged write-ahead log for its end and silently continues with less. So after each commit, before the
acknowledgement, the heads are written here too, without a sync: the file may be older than the database, after a power
loss, but never newer. Two slots in turn, each with a checksum: a torn write leaves the other slot intact.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from rftd.ops.decoding import msgpack_decoder
from rftd.streams.log.chain import Heads, Mark
from rftd.streams.log.topics import Partition

FILE_NAME: Final = "log.heads"
"""Name of the file in the log's folder."""
_SLOT_SIZE_BYTES: Final = 64 * 1024
"""Size of each of the two slots."""


class _Slot(msgspec.Struct, frozen=True, array_like=True):
    """Content of one slot."""

    sequence: int
    """Number of the write; the slot with the higher one is newer."""
    heads: list[tuple[str, int, int, bytes]]
    """Stream, partition number, next offset and chain of each head."""


_encoder = msgspec.msgpack.Encoder()
"""Encoder of the file of heads."""
_decoder = msgpack_decoder(_Slot)


class HeadsFile:
    """The file `log.heads`: the log's heads as of the last commit, written alternately to two checksummed slots."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file; writes continue above the highest sequence there."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._sequence = max((slot.sequence for slot in _slots(path)), default=0)

    def write(self, heads: Mapping[Partition, Mark]) -> None:
        """Writes the heads of all partitions. Failing is harmless: the older slot stays."""
        self._sequence += 1
        rows = [(stream, number, *mark) for (stream, number), mark in heads.items()]
        body = _encoder.encode(_Slot(self._sequence, rows))
        framed = xxhash.xxh3_64_digest(body) + len(body).to_bytes(4, "little") + body
        if len(framed) <= _SLOT_SIZE_BYTES:  # a longer one would run into the other slot
            with suppress(OSError):
                # One write and no fsync, because every acknowledgement waits for it. A killed process loses nothing of
                # it; after a power loss it may be older than the database, which is harmless to every check.
                os.pwrite(self._file, framed, self._sequence % 2 * _SLOT_SIZE_BYTES)

    def close(self) -> None:
        """Closes the file; the written slots stay for the next start."""
        os.close(self._file)


def read_heads(path: Path) -> Heads:
    """Returns the newest heads in an undamaged slot of the file; none without a file."""
    newest = max(_slots(path), key=lambda slot: slot.sequence, default=None)
    if newest is None:
        return {}
    return {Partition(stream, number): Mark(offset, chain) for stream, number, offset, chain in newest.heads}


def _slots(path: Path) -> list[_Slot]:
    """Returns the undamaged slots of a file."""
    content = path.read_bytes() if path.exists() else b""
    slots: list[_Slot] = []
    for start in (0, _SLOT_SIZE_BYTES):
        slot = content[start : start + _SLOT_SIZE_BYTES]
        body = slot[12 : 12 + int.from_bytes(slot[8:12], "little")]
        if body and xxhash.xxh3_64_digest(body) == slot[:8]:
            slots.append(_decoder.decode(body))
    return slots
