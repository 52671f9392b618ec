"""Records as bytes: a u32 length (little-endian), then (offset, head, value) in MessagePack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from rftd.ops import limits
from rftd.ops.decoding import msgpack_decoder
from rftd.ops.errors import ArchiveError

FRAME_SIZE_BYTES: Final = limits.RECORD_SIZE_BYTES + 64


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record, at its place in the log that it came from."""

    offset: int
    head: bytes
    value: bytes


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgpack_decoder(Frame)


def encode_frame(offset: int, head: bytes, value: bytes) -> bytes:
    """The bytes of one record."""
    body = _encoder.encode(Frame(offset, head, value))
    return len(body).to_bytes(4, "little") + body


def read_frames(stream: Readable, where: str) -> Iterator[Frame]:
    """The records of a member, one at a time. Raises ArchiveError for what is no record."""
    while length := stream.read(4):
        size = int.from_bytes(length, "little")
        if len(length) < 4 or not 0 < size <= FRAME_SIZE_BYTES:
            raise ArchiveError(f"a record of {size} bytes; at most {FRAME_SIZE_BYTES} are possible", where=where)
        body = stream.read(size)
        if len(body) < size:
            raise ArchiveError("the last record is cut off", where=where)
        try:
            frame = _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ArchiveError(f"no record: {error}", where=where) from error
        yield frame
