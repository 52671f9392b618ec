"""The files of an exported experiment: selection for an export, and restoration from an export."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Final

import msgspec

from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import (
    ArchiveError,
    ConflictError,
    DiskFullError,
    LogCorruptError,
    NotFoundError,
    RftdError,
)
from rftd.storage.files.artifacts import ArtifactStore, size_and_sha256
from rftd.storage.files.checkpoints import latest, mark_latest, may_share, verify
from rftd.storage.files.own_places import checkpoint_folder, is_own_weights
from rftd.storage.files.served_history import FILE, copy_whole, difference_of, promises
from rftd.storage.files.service_state import PATH as SERVICE_STATE
from rftd.storage.files.table_files import KIND as TABLE
from rftd.storage.files.table_files import fits_name, tables_of
from rftd.streams.events.task import TasksOffered
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.portable.container import ArchiveReader, ArchiveWriter
from rftd.streams.portable.export import OutsideNames
from rftd.streams.portable.folders import Folders
from rftd.streams.portable.format import FilePart
from rftd.streams.portable.load import Checked

STEP: Final = re.compile(r"global_step_([0-9]{1,12})")
"""The name of a checkpoint's folder."""
_ENDED: Final = frozenset(status.value for status in Status if status.ended)
"""States of ended experiments."""
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A file selected for an export: kind, folder, and the relative path below the folder."""

    kind: str
    """Kind of the file."""
    folder: Path
    """Folder of the file."""
    path: str
    """Path below the folder."""
    copy: Path | None = None
    """A copy exported in place of the file; deleted when the next file is chosen."""


def choose(named: OutsideNames, checkpoints: str, notes: list[str]) -> Iterator[Chosen]:
    """Yields every artifact and table, and the checkpoints and weights selected by `checkpoints`. Blocks.

    `none` selects no checkpoint, `all` every kept checkpoint, `newest` the newest intact checkpoint. For an unfinished
    experiment, the last two add weight versions still available to explorers. Missing or damaged files are left out and
    listed in `notes`. Raises NotFoundError for a missing artifact, and for a missing, not yet trained history or table.
    """
    spec = named.spine.spec
    status = named.spine.status
    assert spec is not None
    if named.spine.kept is Kept.REMOVED:
        notes.append("its files were removed: only its events are exported")
        return
    store = ArtifactStore(Path(spec.job_dir) / "artifacts")
    for name in sorted(sha256.hex() for sha256 in named.artifacts):
        if not store.has(name):
            raise NotFoundError(
                f"no artifact {name}", where=str(store.path_of(name)), fix="restore the files of the experiment first"
            )
        yield Chosen(kind="artifact", folder=store.root, path=f"{name[:2]}/{name}")
    yield from _tables(named, notes)
    yield from _histories(named, notes)
    if checkpoints == "none":
        return
    for event in named.kept_checkpoints():
        try:
            verify(checkpoint_folder(spec, event), event.files)
        except RftdError as error:
            notes.append(f"checkpoint of step {event.step} left out: {error.what}")
            continue
        if any(file.path == SERVICE_STATE for file in event.files):
            notes.append(
                f"checkpoint of step {event.step}: its weights and optimizer stay at the service that it names"
            )
        for file in event.files:
            yield Chosen(kind="checkpoint", folder=Path(event.path), path=file.path)
        if checkpoints == "newest":
            break
    if status is not None and status.ended:  # its published weights were removed with its end
        return
    for published in named.kept_weights():
        if published.host:
            notes.append(f"weights {published.version} left out: they are in memory; the trainer publishes them again")
            continue
        if not published.path.startswith("/"):
            notes.append(f"weights {published.version} left out: they are at a service, as {published.path}")
            continue
        if not is_own_weights(spec, published):
            notes.append(f"weights {published.version} left out: {published.path} is not the experiment's")
            continue
        folder = Path(published.path)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        if not files:
            notes.append(f"weights {published.version} left out: there is no {folder}")
        for path in files:
            yield Chosen(kind="weights", folder=folder, path=path.relative_to(folder).as_posix())


def _tables(named: OutsideNames, notes: list[str]) -> Iterator[Chosen]:
    """Yields the files of the database tables read by the experiment, impossible to produce again."""
    spec = named.spine.spec
    status = named.spine.status
    assert spec is not None
    for path in tables_of(spec):
        if path.is_file():
            yield Chosen(kind=TABLE, folder=path.parent, path=path.name)
        elif status is not None and status.ended:
            notes.append(f"{path} left out: it is gone")
        else:
            fix = "put the file back first"
            raise NotFoundError("the rows of a table that it reads are gone", where=str(path), fix=fix)


def _histories(named: OutsideNames, notes: list[str]) -> Iterator[Chosen]:
    """Yields a copy of each serving stage's history in its current state, with at least the promised rows."""
    spec = named.spine.spec
    status = named.spine.status
    assert spec is not None
    for folder, promised in promises(spec, named.offers).items():
        path = folder / FILE
        lacks = difference_of(path, promised)
        if lacks and not (status is not None and status.ended):
            fix = "put the newest copy of the file back first"
            raise NotFoundError(f"the history of its conversations {lacks}", where=str(path), fix=fix)
        if lacks:
            notes.append(f"the history of stage {promised.stage} left out: {path} {lacks}")
        elif path.exists():  # else no client has come yet
            with TemporaryDirectory(prefix="rftd-history-") as temporary:
                copy = Path(temporary) / FILE
                copy_whole(path, copy)
                yield Chosen(kind="history", folder=folder, path=FILE, copy=copy)


def add_files(archive: ArchiveWriter, chosen: Iterable[Chosen], notes: list[str]) -> tuple[FilePart, ...]:
    """Copies the files into the export. Raises LogCorruptError for a file with mismatched name and digest. Blocks.

    Weights removed meanwhile are left out and listed in `notes`: a resumed run produces weights again.
    """
    parts: list[FilePart] = []
    for file in chosen:
        try:
            member = archive.copy(f"files/{len(parts):06d}", file.copy or file.folder / file.path)
        except FileNotFoundError:
            if file.kind != "weights":
                raise
            notes.append(f"{file.folder / file.path} left out: it was removed meanwhile")
            continue
        named = file.kind in ("artifact", TABLE)
        if named and not (member.sha256 == file.path[3:] or fits_name(file.path, member.sha256)):
            raise LogCorruptError(
                f"the bytes of this {file.kind} do not match its name",
                where=str(file.folder / file.path),
                fix="restore the file from a backup",
            )
        parts.append(FilePart(kind=file.kind, folder=str(file.folder), path=file.path, member=member))
    return tuple(parts)


def check_files(archive: ArchiveReader, checked: Checked) -> None:
    """Checks the names of an archive's files against the experiment's events.

    Raises ArchiveError for a file without an event, for a name other than a plain path below the folder, and for a
    missing, not yet trained history of conversations.
    """
    # The archive may come from an untrusted source: a path with `..`, a root, a NUL or a backslash would lead out of
    # the folder here or on the next machine, and a file without an event could be anything, placed beside a loaded
    # model.
    histories = promises(checked.spec, checked.offers)
    tables = tables_of(checked.spec)
    for exported in archive.manifest.files:
        name = PurePosixPath(exported.path)
        folder = PurePosixPath(exported.folder)
        plain = str(name) == exported.path and not name.is_absolute() and not {"..", "."} & set(name.parts)
        if not plain or "\\" in exported.path or "\0" in exported.path + exported.folder or ".." in folder.parts:
            raise ArchiveError(f"{exported.path[:200]!r} is not a plain path below a folder", where=str(archive.path))
        match exported.kind:
            case "artifact":
                sha256 = exported.member.sha256
                home = PurePosixPath(checked.spec.job_dir) / "artifacts"
                is_named = folder == home and exported.path == f"{sha256[:2]}/{sha256}"
            case "checkpoint":
                is_named = (exported.path, exported.member.sha256) in checked.checkpoints.get(exported.folder, ())
            case "weights":
                is_named = exported.folder in checked.weights
            case "table":
                is_named = Path(folder, name) in tables and fits_name(exported.path, exported.member.sha256)
            case "history":
                is_named = Path(folder) in histories and exported.path == FILE
            case _:
                is_named = False
        if not is_named or not folder.is_absolute():
            raise ArchiveError(
                f"no event names the file {exported.path[:200]!r} in {exported.folder}", where=str(archive.path)
            )
    enclosed = {exported.folder for exported in archive.manifest.files if exported.kind == "history"}
    if archive.manifest.state in _ENDED or checked.removed:
        return
    for history_folder, promised in histories.items():
        if promised.rows and str(history_folder) not in enclosed:
            raise ArchiveError(
                f"it lacks the history of {promised.rows} rows of conversations that the experiment has yet to train",
                where=str(archive.path),
                fix="export the experiment again where its folder is",
            )


def all_there(files: Sequence[FilePart], histories: Mapping[Path, TasksOffered]) -> bool:
    """True if every file lies unchanged at the exported path, and every history keeps the promise. Blocks."""
    paths = {Path(exported.folder) / exported.path: exported for exported in files}
    fixed = {path: exported for path, exported in paths.items() if exported.kind != "history"}
    # Sizes of all files before the bytes of any: another experiment's folder is recognised without reading a
    # checkpoint.
    sizes = all(_size_of(path) == exported.member.size_bytes for path, exported in fixed.items())
    intact = sizes and all(_keeps_promise(path, histories) for path in paths.keys() - fixed.keys())
    return intact and all(_has_digest(path, exported) for path, exported in fixed.items())


def restore(archive: ArchiveReader, checked: Checked, folders: Folders, roots: Sequence[Path]) -> int:
    """Writes the files to the paths of the moved events, only below `roots`. Returns the number written. Blocks.

    Each file appears under the final name only once complete and durable. An existing history with all promised rows is
    left alone, because of possible growth. Raises ConflictError where a different file lies, ArchiveError for an
    archived history without all promised rows.
    """
    histories = {
        Path(folders.path(str(folder))): promised for folder, promised in promises(checked.spec, checked.offers).items()
    }
    count = 0
    touched = set()
    tensors: dict[str, Path] = {}
    """Written checkpoint files by sha256: files shared by several checkpoints become one file again."""
    for exported in archive.manifest.files:
        path = Path(folders.path(exported.folder)) / exported.path
        touched.add((exported.kind, path.parents[len(PurePosixPath(exported.path).parts) - 1]))
        if _size_of(path) == exported.member.size_bytes and _has_digest(path, exported):
            continue
        if exported.kind == "history" and _keeps_promise(path, histories):
            continue
        # The real path: a symbolic link on the way would lead out of the apparent folder.
        if not any(Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)) for root in roots):
            raise ConflictError(
                "a file of the experiment would be written outside the requested folders",
                where=str(path),
                fix=f"choose its folder: --map {exported.folder}=FOLDER",
            )
        if path.exists():
            raise ConflictError(
                "another file exists there", where=str(path), fix="choose another folder with --map OLD=NEW"
            )
        shared = exported.kind == "checkpoint" and may_share(exported.path, exported.member.size_bytes)
        if not (shared and exported.member.sha256 in tensors and _try_hard_link(tensors[exported.member.sha256], path)):
            _write_exported(archive, exported, path)
        if exported.kind == "history" and (lacks := difference_of(path, histories[path.parent])):
            path.unlink()
            raise ArchiveError(f"the history of conversations in it {lacks}", where=str(archive.path))
        if shared:
            tensors[exported.member.sha256] = path
        count += 1
    # Last, when every file is durable: the markers say which checkpoint is whole.
    for kind, folder in sorted(touched):
        step = STEP.fullmatch(folder.name)
        if kind == "checkpoint" and step is not None and (latest(folder.parent) or 0) < int(step[1]):
            mark_latest(folder.parent, int(step[1]))
    return count


def _try_hard_link(written_path: Path, path: Path) -> bool:
    """Gives a written file a second name by a hard link; False where that is impossible."""
    make_durable_folder(path.parent)
    try:
        os.link(written_path, path)
    except OSError:
        return False
    sync_folder(path.parent)
    return True


def _write_exported(archive: ArchiveReader, exported: FilePart, path: Path) -> None:
    """Writes a file of the archive, complete before it gets its name. Raises DiskFullError."""
    try:
        make_durable_folder(path.parent)
        with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
            try:
                for chunk in archive.open(exported.member).chunks():
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
        sync_folder(path.parent)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFullError(
                "no space for the experiment's files", where=str(path), fix="free space and repeat the import"
            ) from error
        raise


def _keeps_promise(path: Path, histories: Mapping[Path, TasksOffered]) -> bool:
    """True if the history in a file holds all promised rows."""
    return path.parent in histories and path.exists() and not difference_of(path, histories[path.parent])


def _size_of(path: Path) -> int:
    """Returns the size of a file in bytes; -1 for a missing file."""
    return path.stat().st_size if path.is_file() else -1


def _has_digest(path: Path, exported: FilePart) -> bool:
    """True if a file's digest is that of the exported file."""
    return size_and_sha256(path)[1] == exported.member.sha256
