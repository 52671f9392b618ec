"""A fold as bytes, with what must be true of the log for it to be believed. A cache, never truth (rule 11).

    "rftd-fold" ‖ version (16 digits) ‖ sha256 of the rest (32) ‖ pieces, each with its length (4, big endian)

The first piece says of what it is and how far it has come, whatever its version: it is a witness of the log's heads.
The others are the fold (see `rftd.streams.folds.pieces`). The version is that of what folds mean, and is written by
hand: a release that folds something else, or keeps it in another shape, has a new one and folds from the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeVar
from uuid import UUID

import msgspec

from rftd.ops.decoding import msgpack_decoder
from rftd.ops.errors import CodecError
from rftd.streams.events.experiment import HeadRef
from rftd.streams.folds.pieces import from_pieces, pieces_of
from rftd.streams.log.chain import Heads, Mark
from rftd.streams.log.fencing import FenceOwner
from rftd.streams.log.topics import TOPICS, Partition

P = TypeVar("P", bound=msgspec.Struct)

VERSION: Final = 1
"""Raise it with every change of what the folds keep or mean, from 0.1.0 on."""

_MAGIC: Final = b"rftd-fold"
_VERSION_SIZE_BYTES: Final = 16
_HEAD_SIZE_BYTES: Final = len(_MAGIC) + _VERSION_SIZE_BYTES + 32
_LENGTH_SIZE_BYTES: Final = 4
_encoder: Final = msgspec.msgpack.Encoder(uuid_format="bytes")


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
        """The heads that the log must still hold: of these partitions, or of all."""
        # Heartbeats are forgotten on purpose; without a chain nothing of the partition was read that could be missed.
        found = {
            Partition(mark.stream, mark.partition): Mark(mark.next_offset, mark.chain)
            for mark in self.marks
            if mark.chain and TOPICS[mark.stream].retention_s is None
        }
        return found if partitions is None else {key: mark for key, mark in found.items() if key in partitions}


class Nothing(msgspec.Struct):
    """The parts of a snapshot that is read for what it remembers of the log: Snapshot[Nothing] is of any version."""


class _FirstPiece(msgspec.Struct, kw_only=True):
    """The first piece."""

    experiment: UUID | None
    marks: tuple[HeadRef, ...]
    fences: tuple[FenceOwner, ...]


def pack(snapshot: Snapshot[P]) -> bytes:
    """The snapshot as the bytes of a file; it must not change meanwhile. May run on a thread: see `pieces_of`."""
    # The place has a piece of its own, whose shape is the same in every version: what a snapshot remembers of the log
    # is heard even where its fold is of another release.
    place = _FirstPiece(experiment=snapshot.experiment, marks=snapshot.marks, fences=snapshot.fences)
    payload: list[bytes] = []
    for piece in (_encoder.encode(place), *pieces_of(snapshot.parts)):
        payload += (len(piece).to_bytes(_LENGTH_SIZE_BYTES, "big"), piece)
    digest = hashlib.sha256()
    for piece in payload:
        digest.update(piece)
    return b"".join((_MAGIC, b"%016d" % VERSION, digest.digest(), *payload))


def unpack(data: bytes, kind: type[Snapshot[P]]) -> Snapshot[P]:
    """The snapshot in a file; parts that `kind` does not name are left out. Raises CodecError, which says why not."""
    view = memoryview(data)
    if bytes(view[: len(_MAGIC)]) != _MAGIC or len(data) < _HEAD_SIZE_BYTES:
        raise CodecError("it is no snapshot, or cut off")
    start = len(_MAGIC) + _VERSION_SIZE_BYTES
    payload = view[_HEAD_SIZE_BYTES:]
    # Before anything is decoded: a file that was cut off or flipped on disk must cost a fold from the log, and no more.
    if hashlib.sha256(payload).digest() != bytes(view[start:_HEAD_SIZE_BYTES]):
        raise CodecError("its bytes do not match its sha256")
    parts = _parts_of(kind)
    version = bytes(view[len(_MAGIC) : start])
    try:
        if version != b"%016d" % VERSION and parts is not Nothing:
            raise CodecError(f"it is of version {version.decode(errors='replace')}, and this release reads {VERSION}")
        pieces = _cut(payload)
        place = msgpack_decoder(_FirstPiece).decode(next(pieces, b""))
        fold = from_pieces(pieces if parts is not Nothing else (b"\x80",), parts)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError) as error:
        raise CodecError(f"it cannot be decoded: {error}") from error
    return kind(experiment=place.experiment, marks=place.marks, fences=place.fences, parts=fold)


def _parts_of(kind: type[Snapshot[P]]) -> type[P]:
    (parts,) = kind.__args__  # type: ignore[attr-defined]
    return parts  # type: ignore[no-any-return]


def _cut(payload: memoryview) -> Iterator[bytes]:
    start = 0
    while start < len(payload):
        end = start + _LENGTH_SIZE_BYTES
        start = end + int.from_bytes(payload[start:end], "big")
        if start > len(payload):
            raise CodecError("it is cut off")
        yield bytes(payload[end:start])
