"""The parts of a portable file: its manifest, the last member `manifest.json`, and records as bytes.

A record is a u32 length (little-endian), then (offset, head, value) in MessagePack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, msgpack_decoder
from rftd.ops.errors import ArchiveError

FORMAT: Final = "rftd-experiment"
"""Name of the format in a manifest."""
FORMAT_VERSION: Final = 1
"""Version of the format in a manifest."""
MANIFEST: Final = "manifest.json"
"""Name of the manifest in an export."""
MANIFEST_SIZE_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a manifest to read: it is held in memory, and a file names its own size."""


class ArchiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the file: name, size in bytes and sha256."""

    name: str
    size_bytes: int
    sha256: str


class PartitionPart(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment's records of one partition: number, first and last offset, and the member with the bytes."""

    stream: str
    partition: int
    records: int
    first: int
    """Offset of the first record in the exporting log."""
    last: int
    """Offset of the last record in the exporting log."""
    member: ArchiveMember


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the experiment in an export, with its original path."""

    kind: str
    """`artifact`, `table`, `history`, `checkpoint` or `weights`."""
    folder: str
    """Folder on the exporting machine, as an absolute path named in events."""
    path: str
    """The path below the folder, with slashes."""
    member: ArchiveMember


class ExportManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Table of contents of an export: experiment, release, partitions and files."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    rftd: str
    """The exporting release."""
    experiment: UUID
    name: str
    state: str
    """The experiment's state at the export: `completed`, `running`, ..."""
    job_dir: str
    created: str
    """The time of the export, ISO 8601 in UTC."""
    event: UUID | None = None
    """Id of the `experiment.archived` that names this file; None for `rftd export`."""
    partitions: tuple[PartitionPart, ...]
    files: tuple[FilePart, ...] = ()


class FormatVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a manifest common to all versions of the format."""

    format: str
    version: int


FRAME_SIZE_BYTES: Final = limits.RECORD_SIZE_BYTES + 64
"""Maximum size of a frame: the largest record, its offset and the prefixes of MessagePack."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record with its offset in the exporting log."""

    offset: int
    head: bytes
    value: bytes


class Readable(Protocol):
    """A binary stream with the method `read`, such as a file."""

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, at most `size` of them; none at the end."""
        ...


_encoder: Final = msgspec.msgpack.Encoder()
"""Encoder of frames."""
_decoder: Final = msgpack_decoder(Frame)
"""Decoder of frames."""


def encode_frame(offset: int, head: bytes, value: bytes) -> bytes:
    """Encodes one record as a frame: length, then offset, head and value."""
    body = _encoder.encode(Frame(offset, head, value))
    return len(body).to_bytes(4, "little") + body


def read_frames(stream: Readable, where: str) -> Iterator[Frame]:
    """Yields the records in a member's bytes, one at a time; `where` names the member in errors. Raises ArchiveError
    for invalid bytes.
    """
    while length := stream.read(4):
        size = int.from_bytes(length, "little")
        # Checked before reading: a damaged length must not make this process reserve gigabytes.
        if len(length) < 4 or not 0 < size <= FRAME_SIZE_BYTES:
            raise ArchiveError(f"a record of {size} bytes; at most {FRAME_SIZE_BYTES} are possible", where=where)
        body = stream.read(size)
        if len(body) < size:
            raise ArchiveError("the last record is truncated", where=where)
        try:
            frame = _decoder.decode(body)
        except UNREADABLE as error:
            raise ArchiveError(f"no record: {error}", where=where) from error
        yield frame
