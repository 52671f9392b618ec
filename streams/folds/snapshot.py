"""A fold as bytes, with the facts about the log required for its use. A cache, never truth.

    "rftd-fold" ‖ version (16 digits) ‖ sha256 of the rest (32) ‖ pieces, each with its length (4, big endian)

The first piece states subject and progress in every version: it is a witness of the log's heads. The later ones are the
fold (see `rftd.streams.folds.pieces`). The version covers the meaning of folds, and is set by hand: a release with
other folds, or another shape of them, has a new one and folds from the log.
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
"""Type of the fold's parts."""

VERSION: Final = 1
"""To be raised with every change of the folds' shape or meaning, from 0.1.0 on."""

_MAGIC: Final = b"rftd-fold"
"""First bytes of a snapshot."""
_VERSION_SIZE_BYTES: Final = 16
"""Bytes of the version."""
_HEAD_SIZE_BYTES: Final = len(_MAGIC) + _VERSION_SIZE_BYTES + 32
"""Bytes before the first piece: magic, version and sha256."""
_LENGTH_SIZE_BYTES: Final = 4
"""Bytes of a piece's length."""
_encoder: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
"""Encoder of the first piece."""


class Snapshot(msgspec.Struct, Generic[P], kw_only=True):
    """A fold with the offsets up to which it was folded, and the fences known there."""

    experiment: UUID | None
    """Experiment of the fold; None for a fold of the complete log."""
    marks: tuple[HeadRef, ...]
    """Next offset of each partition, with the chain of the record before it (empty if none was read)."""
    fences: tuple[FenceOwner, ...]
    """Owner of each role at the positions."""
    parts: P
    """The fold's containers."""

    @property
    def positions(self) -> dict[Partition, int]:
        """Next offset to fold, by partition."""
        return {Partition(mark.stream, mark.partition): mark.next_offset for mark in self.marks}

    def heads(self, partitions: Mapping[Partition, int] | None = None) -> Heads:
        """Returns the heads that a log must contain for the snapshot to be usable, of `partitions` or of all."""
        # Heartbeats are deleted on purpose; without a chain, no record of the partition was read that could be missed.
        remembered = {
            Partition(mark.stream, mark.partition): Mark(mark.next_offset, mark.chain)
            for mark in self.marks
            if mark.chain and TOPICS[mark.stream].retention_s is None
        }
        return (
            remembered if partitions is None else {key: mark for key, mark in remembered.items() if key in partitions}
        )


class Nothing(msgspec.Struct):
    """Stand-in for the folds of a snapshot read only for its heads: Snapshot[Nothing] reads any version."""


class _FirstPiece(msgspec.Struct, kw_only=True):
    """The first piece: subject, positions and fences."""

    experiment: UUID | None
    """Experiment of the fold; None for the complete log."""
    marks: tuple[HeadRef, ...]
    """Positions of the partitions."""
    fences: tuple[FenceOwner, ...]
    """Owner of each role at the positions."""


def pack(snapshot: Snapshot[P]) -> bytes:
    """Encodes a snapshot as the bytes of a file; it must not change meanwhile. May run on a thread: see `pieces_of`."""
    # The positions have a separate piece, with one shape in every version: the heads remembered by a snapshot are used
    # even if its fold is another release's.
    first_piece = _FirstPiece(experiment=snapshot.experiment, marks=snapshot.marks, fences=snapshot.fences)
    payload: list[bytes] = []
    for piece in (_encoder.encode(first_piece), *pieces_of(snapshot.parts)):
        payload += (len(piece).to_bytes(_LENGTH_SIZE_BYTES, "big"), piece)
    digest = hashlib.sha256()
    for piece in payload:
        digest.update(piece)
    return b"".join((_MAGIC, b"%016d" % VERSION, digest.digest(), *payload))


def unpack(content: bytes, kind: type[Snapshot[P]]) -> Snapshot[P]:
    """Decodes a snapshot file; folds that `kind` does not have are skipped. Raises CodecError with the reason."""
    view = memoryview(content)
    if bytes(view[: len(_MAGIC)]) != _MAGIC or len(content) < _HEAD_SIZE_BYTES:
        raise CodecError("it is no snapshot, or cut off")
    start = len(_MAGIC) + _VERSION_SIZE_BYTES
    payload = view[_HEAD_SIZE_BYTES:]
    # Before any decoding: a file truncated or flipped on disk must cost a fold from the log, and no more.
    if hashlib.sha256(payload).digest() != bytes(view[start:_HEAD_SIZE_BYTES]):
        raise CodecError("its bytes do not match its sha256")
    parts = _parts_of(kind)
    version = bytes(view[len(_MAGIC) : start])
    try:
        if version != b"%016d" % VERSION and parts is not Nothing:
            raise CodecError(f"it is of version {version.decode(errors='replace')}, and this release reads {VERSION}")
        pieces = _cut_pieces(payload)
        first_piece = msgpack_decoder(_FirstPiece).decode(next(pieces, b""))
        fold = from_pieces(pieces if parts is not Nothing else (b"\x80",), parts)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError) as error:
        raise CodecError(f"it cannot be decoded: {error}") from error
    return kind(experiment=first_piece.experiment, marks=first_piece.marks, fences=first_piece.fences, parts=fold)


def _parts_of(kind: type[Snapshot[P]]) -> type[P]:
    """Returns the type of the parts in a snapshot type."""
    (parts,) = kind.__args__  # type: ignore[attr-defined]
    return parts  # type: ignore[no-any-return]


def _cut_pieces(payload: memoryview) -> Iterator[bytes]:
    """Yields the pieces of a payload. Raises CodecError for an incomplete one."""
    start = 0
    while start < len(payload):
        end = start + _LENGTH_SIZE_BYTES
        start = end + int.from_bytes(payload[start:end], "big")
        if start > len(payload):
            raise CodecError("it is cut off")
        yield bytes(payload[end:start])
