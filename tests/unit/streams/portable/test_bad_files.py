"""Files that are no whole export change nothing, and say what is wrong."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ArchiveError, ConflictError, DiskFullError, NotFoundError
from rftd.ops.ids import derive
from rftd.storage.portable.experiment import export_experiment, import_experiment
from rftd.streams.memory import MemoryLog
from rftd.streams.portable import container
from rftd.streams.portable.format import ArchiveMember, ExportManifest, FilePart

Change = Callable[[dict[str, bytes], ExportManifest], ExportManifest | None]


async def source() -> tuple[MemoryLog, SyntheticRun]:
    recorder = Recorder(1)
    run = SyntheticRun(recorder, steps=1).write()
    log = MemoryLog()
    await log.append(recorder.drafts)
    return log, run


def files_in(folder: Path) -> list[str]:
    """Names of what lies there."""
    return sorted(path.name for path in folder.iterdir())


async def exported(path: Path) -> None:
    log, run = await source()
    await export_experiment(log, run.id, path, release="1", clock=ManualClock(), checkpoints="none")


def with_manifest(path: Path, text: bytes) -> Path:
    """The export with another manifest."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    new = path.with_name("changed.rftd")
    with zipfile.ZipFile(new, "w") as file:
        for name, data in {**members, "manifest.json": text}.items():
            file.writestr(name, data)
    return new


async def refused(path: Path, kind: type[Exception], words: str) -> None:
    """Importing it raises, and leaves the log and the folder as they are."""
    log = MemoryLog()
    home = path.parent / "home"
    with pytest.raises(kind, match=words):
        await import_experiment(log, path, home=home, clock=ManualClock(), moves=[("/jobs", str(home))])
    assert not await log.heads()
    assert not home.exists()


def changed(path: Path, change: Change) -> Path:
    """The export with its members and manifest changed, and its checksums as a careful forger would have them."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    manifest = msgspec.json.decode(members.pop("manifest.json"), type=ExportManifest)
    manifest = change(members, manifest) or manifest
    new = path.with_name("changed.rftd")
    with zipfile.ZipFile(new, "w") as file:
        for name, data in {**members, "manifest.json": msgspec.json.encode(manifest)}.items():
            file.writestr(name, data)
    return new


def with_file(kind: str, folder: str, path: str) -> Change:
    def change(members: dict[str, bytes], manifest: ExportManifest) -> ExportManifest:
        members["files/000000"] = b"evil"
        member = ArchiveMember(name="files/000000", size_bytes=4, sha256=hashlib.sha256(b"evil").hexdigest())
        return msgspec.structs.replace(manifest, files=(FilePart(kind=kind, folder=folder, path=path, member=member),))

    return change


@pytest.mark.anyio
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
async def test_a_file_that_was_cut_off(tmp_path: Path, share: float) -> None:
    path = tmp_path / "x.rftd"
    await exported(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    await refused(path, ArchiveError, "not an export, or is truncated")


@pytest.mark.anyio
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
async def test_a_byte_that_changed(tmp_path: Path, share: float) -> None:
    path = tmp_path / "x.rftd"
    await exported(path)
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0x55
    path.write_bytes(data)
    await refused(path, ArchiveError, "damaged|match|not an export|has no|record|member|manifest|unreadable")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda members, manifest: msgspec.structs.replace(manifest, version=2), "format is version 2"),
        (lambda members, manifest: msgspec.structs.replace(manifest, format="tar"), "its format is 'tar'"),
        (lambda members, manifest: members.update({"../x": b""}), "unknown to exports"),
        (lambda members, manifest: members.update({"files/000009": b""}), "differ from its manifest"),
        (lambda members, manifest: members.update({n: d + b"\0" for n, d in members.items()}), "not have the size"),
        (lambda members, manifest: members.update({n: d[::-1] for n, d in members.items()}), "sha256|a record of"),
        (
            lambda members, manifest: msgspec.structs.replace(manifest, experiment=derive(manifest.experiment, "x")),
            "cannot hold|a record of experiment",
        ),
        (with_file("weights", "/etc", "../passwd"), "is not a plain path"),
        (with_file("weights", "/etc", "/passwd"), "is not a plain path"),
        (with_file("weights", "/etc", "passwd"), "no event names the file"),
        (with_file("checkpoint", "/jobs/../etc", "passwd"), "is not a plain path"),
        (with_file("program", "/jobs", "x"), "no event names the file"),
        (with_file("artifact", "/jobs/artifacts", "aa/" + "a" * 64), "no event names the file"),
    ],
)
async def test_a_file_that_somebody_changed(tmp_path: Path, change: Change, words: str) -> None:
    path = tmp_path / "x.rftd"
    await exported(path)
    await refused(changed(path, change), ArchiveError, words)


DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.anyio
@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"format": "\xff"}', b'{"format": 1, "version": 1}', b'{"x": ' + DEEP + b"}"],
)
async def test_a_manifest_that_cannot_be_read(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x.rftd"
    await exported(path)
    await refused(with_manifest(path, text), ArchiveError, "its manifest cannot be read")


@pytest.mark.anyio
async def test_a_record_that_is_nested_without_an_end(tmp_path: Path) -> None:
    """Its sum is right: whoever made the file wrote it so."""

    def change(members: dict[str, bytes], manifest: ExportManifest) -> ExportManifest:
        part = manifest.partitions[0]
        body = b"\x91" * 5000 + b"\xc0"
        data = members[part.member.name] = len(body).to_bytes(4, "little") + body
        member = ArchiveMember(name=part.member.name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        changed = msgspec.structs.replace(part, member=member)
        return msgspec.structs.replace(manifest, partitions=(changed, *manifest.partitions[1:]))

    path = tmp_path / "x.rftd"
    await exported(path)
    await refused(changed(path, change), ArchiveError, "no record")


@pytest.mark.anyio
async def test_no_file_and_no_export(tmp_path: Path) -> None:
    await refused(tmp_path / "none.rftd", NotFoundError, "there is no file")
    (tmp_path / "text").write_text("hello")
    await refused(tmp_path / "text", ArchiveError, "not an export")


@pytest.mark.anyio
async def test_an_export_never_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.rftd"
    path.write_text("mine")
    with pytest.raises(ConflictError, match="exists already"):
        await exported(path)
    assert path.read_text() == "mine"


@pytest.mark.anyio
async def test_an_unknown_experiment_leaves_no_file(tmp_path: Path) -> None:
    log, run = await source()
    with pytest.raises(NotFoundError, match="no experiment"):
        await export_experiment(log, derive(run.id, "x"), tmp_path / "x", release="1", clock=ManualClock())
    assert files_in(tmp_path) == []


@pytest.mark.anyio
async def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: object, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(container.MemberWriter, "write", full)
    with pytest.raises(DiskFullError, match="no space"):
        await exported(tmp_path / "x.rftd")
    assert files_in(tmp_path) == []
