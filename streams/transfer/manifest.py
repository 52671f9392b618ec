"""`Manifest`: what an export says about itself, as `manifest.json`, its last member."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

FORMAT: Final = "rftd-experiment"
FORMAT_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
MANIFEST_SIZE_BYTES: Final = 256 * 1024 * 1024


class Member(msgspec.Struct, frozen=True, kw_only=True):
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
    member: Member


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """A file that belongs to the experiment."""

    kind: str
    """`artifact`, `checkpoint` or `weights`."""
    folder: str
    """Absolute, where it was exported; the events name it."""
    path: str
    """Below the folder, with slashes."""
    member: Member


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
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


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What every version of the format says."""

    format: str
    version: int
