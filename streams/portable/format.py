"""What a portable file is made of: its manifest, which is `manifest.json` and its last member, and records as bytes.

A record is a u32 length (little-endian), then (offset, head, value) in MessagePack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.decoding import msgpack_decoder
from rftd.ops.errors import ArchiveError

FORMAT: Final = "rftd-experiment"
FORMAT_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
MANIFEST_SIZE_BYTES: Final = 256 * 1024 * 1024


class ArchiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the file."""

    name: str
    size_bytes: int
    sha256: str


class PartitionPart(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment's records of one partition."""

    stream: str
    partition: int
    records: int
    first: int
    """Offset, in the log that it was exported from, of the first record."""
    last: int
    member: ArchiveMember


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """A file that belongs to the experiment."""

    kind: str
    """`artifact`, `checkpoint` or `weights`."""
    folder: str
    """Absolute, where it was exported; the events name it."""
    path: str
    """Below the folder, with slashes."""
    member: ArchiveMember


class ExportManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Of one export."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    rftd: str
    """The release that wrote it."""
    experiment: UUID
    name: str
    state: str
    """Where it stood: `completed`, `running`, ..."""
    job_dir: str
    created: str
    """ISO 8601, UTC."""
    partitions: tuple[PartitionPart, ...]
    files: tuple[FilePart, ...] = ()


class FormatVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What every version of the format says."""

    format: str
    version: int


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
