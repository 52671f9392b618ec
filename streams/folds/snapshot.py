"""A fold as bytes, with what must be true of the log for it to be believed. A cache, never truth (rule 11).

    "rftd-fold" ‖ fingerprint (16) ‖ sha256 of the rest (32) ‖ Snapshot as MessagePack

The fingerprint covers the code of the folds and of the events, so that no release reads what another one folded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Generic, TypeVar
from uuid import UUID

import msgspec

from rftd.ops.errors import CodecError
from rftd.streams.chain import Heads, Mark
from rftd.streams.events.experiment import HeadRef
from rftd.streams.fencing import FenceOwner
from rftd.streams.topics import TOPICS, Partition

P = TypeVar("P")

_MAGIC: Final = b"rftd-fold"
_FINGERPRINT_SIZE_BYTES: Final = 16
_HEAD_SIZE_BYTES: Final = len(_MAGIC) + _FINGERPRINT_SIZE_BYTES + 32
_STREAMS: Final = Path(__file__).parents[1]
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


class Snapshot(msgspec.Struct, Generic[P], kw_only=True):
    """A fold, how far it has come, and the fences on the way."""

    experiment: UUID | None
    """None: of the whole log."""
    marks: tuple[HeadRef, ...]
    """The next offset of each partition, and the chain of the record before it (empty where none was read)."""
    fences: tuple[FenceOwner, ...]
    parts: P

    @property
    def positions(self) -> dict[Partition, int]:
        """The next offset to be folded, for each partition."""
        return {Partition(mark.stream, mark.partition): mark.next_offset for mark in self.marks}

    def heads(self, partitions: Mapping[Partition, int] | None = None) -> Heads:
        """What the log must still hold: of these partitions, or of all."""
        found = {
            Partition(mark.stream, mark.partition): Mark(mark.next_offset, mark.chain)
            for mark in self.marks
            if mark.chain and TOPICS[mark.stream].retention_s is None
        }
        return found if partitions is None else {key: mark for key, mark in found.items() if key in partitions}


def pack(snapshot: Snapshot[P]) -> bytes:
    """The snapshot as the bytes of a file."""
    payload = _encoder.encode(snapshot)
    return b"".join((_MAGIC, fingerprint(), hashlib.sha256(payload).digest(), payload))


def unpack(data: bytes, kind: type[Snapshot[P]]) -> Snapshot[P]:
    """The snapshot in a file; parts that `kind` does not name are left out. Raises CodecError, which says why not."""
    view = memoryview(data)
    if bytes(view[: len(_MAGIC)]) != _MAGIC or len(data) < _HEAD_SIZE_BYTES:
        raise CodecError("it is no snapshot, or cut off")
    start = len(_MAGIC)
    if bytes(view[start : start + _FINGERPRINT_SIZE_BYTES]) != fingerprint():
        raise CodecError("another release folded it")
    payload = view[_HEAD_SIZE_BYTES:]
    if hashlib.sha256(payload).digest() != bytes(view[start + _FINGERPRINT_SIZE_BYTES : _HEAD_SIZE_BYTES]):
        raise CodecError("its bytes do not match its sha256")
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CodecError(f"it cannot be decoded: {error}") from error


@cache
def fingerprint() -> bytes:
    """16 bytes that change with the code that folds, and with that of the events that are folded."""
    digest = hashlib.blake2b(digest_size=_FINGERPRINT_SIZE_BYTES)
    for path in sorted([*_STREAMS.glob("*.py"), *_STREAMS.glob("folds/*.py"), *_STREAMS.glob("events/*.py")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.digest()
