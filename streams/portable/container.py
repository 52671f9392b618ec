"""The portable file: a zip without compression, its members written and read as streams and checked by their sha256.

    log/rftd.tasks-3     records of one partition, framed as in `format`
    files/000007         an artifact, or a file of a checkpoint, as listed in `manifest.json`
    manifest.json        the last member

A zip's directory is its end, so a truncated file is noticed at once. Names of members never become paths.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import msgspec

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.durable import sync_folder
from rftd.ops.errors import ArchiveError, ConflictError, DiskFullError, NotFoundError, UsageError
from rftd.streams.portable.format import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    MANIFEST_SIZE_BYTES,
    ArchiveMember,
    ExportManifest,
    FormatVersion,
)

_NAME: Final = re.compile(r"log/rftd\.[a-z]+-[0-9]{1,4}|files/[0-9]{6,9}")
"""Form of a member's name."""
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every member, the earliest time of the format: equal records make equal files."""
_CHUNK_SIZE_BYTES: Final = 1024 * 1024
"""Bytes copied at once."""
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full volume, quota or maximum file size."""


class ArchiveWriter:
    """Writes an export to a temporary file; `finish` gives it its final name, so that no incomplete export is ever
    visible.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise ConflictError("the file exists already", where=str(path), fix="choose another name with --to")
        if not path.parent.is_dir():
            raise UsageError(f"there is no folder {path.parent}", fix="create it first, or choose another with --to")
        self._path = path
        # In the same folder: a rename is atomic only within a file system, so nobody ever finds half an export.
        self._partial = path.with_name(f".{path.name}.partial")
        with _space(path):
            self._zip = zipfile.ZipFile(self._partial, "w", zipfile.ZIP_STORED, allowZip64=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Deletes the temporary file, unless `finish` was called."""
        with suppress(OSError, ValueError):
            self._zip.close()
        self._partial.unlink(missing_ok=True)

    @contextmanager
    def member(self, name: str) -> Iterator[MemberWriter]:
        """A context for writing one member, with the previous one closed."""
        assert _NAME.fullmatch(name), name
        with _space(self._path), self._zip.open(zipfile.ZipInfo(name, _LONG_AGO), "w", force_zip64=True) as stream:
            yield MemberWriter(name, stream)

    def copy(self, name: str, source: Path) -> ArchiveMember:
        """Copies a file into a member, and returns its entry for the manifest. Blocks."""
        with source.open("rb") as file, self.member(name) as member:
            while chunk := file.read(_CHUNK_SIZE_BYTES):
                member.write(chunk)
        return member.done()

    def finish(self, manifest: ExportManifest) -> None:
        """Writes the manifest, and makes the file durable under its final name. Blocks."""
        with _space(self._path):
            self._zip.writestr(zipfile.ZipInfo(MANIFEST, _LONG_AGO), msgspec.json.format(msgspec.json.encode(manifest)))
            self._zip.close()
            # File, name, folder, in this order: a name durable before its bytes would be an empty export after a power
            # loss, and without the folder's sync the name itself may be lost.
            with self._partial.open("rb+") as file:
                os.fsync(file.fileno())
        if self._path.exists():  # again, for an export takes minutes; `replace` would silently overwrite
            raise ConflictError("the file exists already", where=str(self._path), fix="choose another name")
        self._partial.replace(self._path)
        sync_folder(self._path.parent)


class MemberWriter:
    """The member being written, with its size and digest until now."""

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self._name = name
        self._stream = stream
        self._hash = hashlib.sha256()
        self._size_bytes = 0

    def write(self, content: bytes) -> None:
        """Appends bytes to the member. Blocks."""
        self._stream.write(content)
        self._hash.update(content)
        self._size_bytes += len(content)

    def done(self) -> ArchiveMember:
        """Returns the member's entry for the manifest, covering the bytes written until now."""
        return ArchiveMember(name=self._name, size_bytes=self._size_bytes, sha256=self._hash.hexdigest())


@contextmanager
def _space(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFullError(
                "no space for the export", where=str(path), fix="free space, or use another disk"
            ) from error
        raise


class ArchiveReader:
    """Reads an export: directory and manifest are checked when opened, members while being read."""

    def __init__(self, path: Path) -> None:
        """Opens an export. Raises NotFoundError, or ArchiveError for an incomplete export or an unknown version.
        Blocks.
        """
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no file {path}", fix="give the path printed by rftd export") from error
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise _damaged(path, f"it is not an export, or is truncated: {error}") from error
        try:
            self._names = self._directory()
            self.manifest = self._manifest()
            self._members()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file and all members still open."""
        self._zip.close()

    def open(self, member: ArchiveMember) -> MemberReader:
        """Opens a member for reading. Several may be read at once."""
        try:
            stream = self._zip.open(self._names[member.name])
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise _damaged(self.path, f"its member {member.name} cannot be read: {error}") from error
        return MemberReader(stream, member, f"{self.path}:{member.name}")

    def _directory(self) -> dict[str, zipfile.ZipInfo]:
        # The file may be a stranger's: no bomb (stored members only, none inside another), no duplicate name, and no
        # name never written by this release.
        names: dict[str, zipfile.ZipInfo] = {}
        total = 0
        for info in self._zip.infolist():
            name = info.filename
            if name in names or not (name == MANIFEST or _NAME.fullmatch(name)):
                raise _damaged(self.path, f"it has a member {name[:100]!r} unknown to exports")
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
                raise _damaged(self.path, f"its member {name} is compressed or encrypted")
            names[name] = info
            total += info.file_size
        if total > self.path.stat().st_size:
            raise _damaged(self.path, "its members overlap")
        return names

    def _manifest(self) -> ExportManifest:
        info = self._names.get(MANIFEST)
        if info is None or info.file_size > MANIFEST_SIZE_BYTES:
            raise _damaged(self.path, "it has no manifest")
        try:
            text = self._zip.read(info)
            # The version first, alone: a manifest of another version need not fit the rest of the schema.
            version = json_decoder(FormatVersion).decode(text)
            if version.format != FORMAT:
                raise _damaged(self.path, f"its format is {version.format[:60]!r}, not {FORMAT!r}")
            if version.version != FORMAT_VERSION:
                raise ArchiveError(
                    f"the export's format is version {version.version}; this release reads version {FORMAT_VERSION}",
                    where=str(self.path),
                    fix="import it with the release of rftd that wrote it, or a newer one",
                )
            return json_decoder(ExportManifest).decode(text)
        except (*UNREADABLE, ValueError, zipfile.BadZipFile, OSError, NotImplementedError) as error:
            raise _damaged(self.path, f"its manifest cannot be read: {error}") from error

    def _members(self) -> None:
        members = [manifest_part.member for manifest_part in self.manifest.partitions] + [
            manifest_part.member for manifest_part in self.manifest.files
        ]
        names = [member.name for member in members]
        if sorted([MANIFEST, *names]) != sorted(self._names):
            raise _damaged(self.path, "its members differ from its manifest")
        for member in members:
            if self._names[member.name].file_size != member.size_bytes:
                raise _damaged(self.path, f"{member.name} does not have the size in the manifest")


class MemberReader:
    """The bytes of a member, compared with the manifest's size and sha256 when the last one is read."""

    def __init__(self, stream: IO[bytes], member: ArchiveMember, where: str) -> None:
        self._stream = stream
        self._member = member
        self._where = where
        self._hash = hashlib.sha256()
        self._size_bytes = 0

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, at most `size`; empty at the end.

        Raises ArchiveError if the member has ended and differs from its manifest's entry.
        """
        try:
            content = self._stream.read(size)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise ArchiveError(f"it is damaged: {error}", where=self._where, fix="copy the file again") from error
        self._hash.update(content)
        self._size_bytes += len(content)
        ended = len(content) < size  # zipfile reads short at the end only
        if ended and (self._size_bytes, self._hash.hexdigest()) != (self._member.size_bytes, self._member.sha256):
            raise ArchiveError("its bytes do not match its sha256", where=self._where, fix="copy the file again")
        return content

    def chunks(self) -> Iterator[bytes]:
        """Yields all the bytes, a MiB at a time."""
        while chunk := self.read(_CHUNK_SIZE_BYTES):
            yield chunk

    def close(self) -> None:
        """Closes the member; the file stays open."""
        self._stream.close()


def _damaged(path: Path, fault: str) -> ArchiveError:
    return ArchiveError(fault, where=str(path), fix="copy the file again, or export again")
