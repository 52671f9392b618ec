"""Checkpoint folders: registered in place, by the size and sha256 of each file.

    <job_dir>/global_step_N/actor/...            one checkpoint, complete as soon as it is visible
    <job_dir>/latest_checkpointed_iteration.txt  N of the newest
    <job_dir>/latest_state_dict_iteration.txt    N of the newest that holds model weights

Each checkpoint is created in two phases: written and synced under a temporary name (a trainer's in a `workplace`), then
renamed. The content below `actor` belongs to the writing trainer engine.

Tensors shared with the previous checkpoint, such as a stage's reference model, are hard links to a file, using disk
space once, until the last folder with a link is removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rftd.ops import faults
from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import DataError, FencedError
from rftd.ops.exchange import exchange
from rftd.storage.files.artifacts import size_and_sha256
from rftd.streams.events.checkpoint import FileRef

LATEST_CHECKPOINT: Final = "latest_checkpointed_iteration.txt"
"""Marker file with the step of the newest checkpoint, from which a trainer resumes."""
LATEST_WEIGHTS: Final = "latest_state_dict_iteration.txt"
"""Marker file with the step of the newest checkpoint, for readers of weights; renamed before the marker for resuming.
"""
_STEP_DIGITS: Final = 18
"""Maximum digits of a marker; a damaged one may have any number of them."""
_SHARED_BYTES: Final = 4096
"""Minimum size of shared files; sharing smaller ones saves no disk space."""
_SHARED_SUFFIX: Final = ".safetensors"
"""Suffix of shared files: tensors only, because a configuration edited in one checkpoint must not change in others."""


class Former(NamedTuple):
    """An earlier committed checkpoint whose equal files need not be stored twice."""

    folder: Path
    """Folder of the checkpoint."""
    files: tuple[FileRef, ...]
    """Files of the earlier checkpoint, as listed in its commit."""


class Staged(NamedTuple):
    """A folder written and synced, but not yet visible under the final name."""

    temporary: Path
    """Path of the staged folder."""
    replaced: Path
    """The path to which an existing folder of the final name is moved, if the two cannot be exchanged atomically."""
    files: tuple[FileRef, ...]
    """The folder's files, ordered by path."""

    def clear(self) -> None:
        """Removes the temporary folder and the replaced one after a commit; missing folders are no error."""
        for leftover in (self.temporary, self.replaced):
            shutil.rmtree(leftover, ignore_errors=True)


def commit_folder(folder: Path, write: Callable[[Path], None]) -> tuple[FileRef, ...]:
    """Runs `write` on a folder beside `folder`, then syncs and renames. Returns the files, ordered by path.

    An existing folder from an earlier generation is replaced. If `write` fails, no files remain.
    """
    staged = stage_folder(folder, write)
    place_folder(staged, folder)
    staged.clear()
    return staged.files


def stage_folder(
    folder: Path, write: Callable[[Path], None], *, within: Path | None = None, former: Former | None = None
) -> Staged:
    """First phase of a commit: writes and syncs all files, beside `folder` or `within` a trainer's own workplace.

    A half-written folder of a predecessor is removed. Tensors equal to `former`'s become hard links.
    """
    make_durable_folder(folder.parent)
    if within is None:
        put_back(folder)  # before leftovers are removed: the replaced folder may be the only complete one
    temporary = _temporary_path(folder, within, "tmp")
    replaced = _temporary_path(folder, within, "old")
    for leftover in (temporary, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    try:
        write(temporary)
        files = files_of(temporary)
        if former is not None:
            _share(temporary, files, former)
        faults.point("checkpoint.before_sync")
        # All content is synced before the name: a visible checkpoint is complete, even after a power cut.
        fsync_tree(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Staged(temporary, replaced, files)


def _share(folder: Path, files: Sequence[FileRef], former: Former) -> None:
    """Replaces tensor files equal to `former`'s by hard links, if supported by the file system."""
    former_files = {file.path: file for file in former.files}
    for file in files:
        if former_files.get(file.path) != file or not may_share(file.path, file.size_bytes):
            continue
        staged_path = folder / file.path
        linked = staged_path.with_name(f".{staged_path.name}.linked")
        try:
            os.link(former.folder / file.path, linked)
            # Compares the bytes, not the recorded digest: a damaged checkpoint must not damage another.
            if size_and_sha256(linked) == (file.size_bytes, file.sha256):
                linked.replace(staged_path)
        except OSError:
            continue  # the former file is gone, or the file system has no hard links: it is stored twice
        finally:
            linked.unlink(missing_ok=True)


def may_share(path: str, size_bytes: int) -> bool:
    """True if a checkpoint's file may be a hard link to another checkpoint's file."""
    return size_bytes >= _SHARED_BYTES and path.endswith(_SHARED_SUFFIX)


def place_folder(staged: Staged, folder: Path) -> None:
    """Second phase of a commit: renames the folder to the final name, replacing another trainer's. For the trainer's
    role only.

    Raises FencedError if a successor removed the staged folder; the successor's folder stays.
    """
    faults.point("checkpoint.before_rename")
    try:
        _rename_staged(staged, folder)
    except FileNotFoundError:
        raise _taken_over_error(folder) from None
    faults.point("checkpoint.after_rename")
    sync_folder(folder.parent)


def _rename_staged(staged: Staged, folder: Path) -> None:
    """Renames the staged folder to `folder`. Raises FileNotFoundError, leaving `folder` unchanged, if the staged folder
    is gone.
    """
    # Unlike a file, a folder with content cannot be replaced by a rename: hence the exchange.
    if not folder.exists():
        staged.temporary.rename(folder)
        return
    faults.point("checkpoint.before_exchange")
    if exchange(staged.temporary, folder):
        return
    # Two renames, without the name in between: `put_back` repairs a crash there.
    if not staged.temporary.exists():
        raise FileNotFoundError(staged.temporary)
    folder.rename(staged.replaced)
    try:
        staged.temporary.rename(folder)
    except FileNotFoundError:
        if staged.replaced.exists() and not folder.exists():
            staged.replaced.rename(folder)
        raise


def _taken_over_error(folder: Path) -> FencedError:
    """Returns the error for a trainer whose staged files were removed by a successor."""
    return FencedError(
        "a later trainer writes this checkpoint now",
        where=str(folder),
        fix="nothing: this process's checkpoint is no longer needed",
    )


def _temporary_path(path: Path, within: Path | None, kind: str) -> Path:
    """Returns the temporary path at which a future `path` is prepared."""
    if within is not None:
        return within / (path.name if kind == "tmp" else f"{path.name}.{kind}")
    return path.with_name(f".{path.name}.{kind}")


def put_back(folder: Path) -> None:
    """Undoes a replacement interrupted after the old folder was moved away. For the folder's only writer."""
    if folder.exists() or not folder.parent.is_dir():
        return
    old = _temporary_path(folder, None, "old")
    if old.exists():
        old.rename(folder)
        sync_folder(folder.parent)


def files_of(folder: Path) -> tuple[FileRef, ...]:
    """Returns every file below `folder` with size and digest, ordered by path. Raises DataError for a symbolic link."""
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():  # its digest would vouch for a file elsewhere, which may change
            raise DataError("a checkpoint holds a symbolic link", where=str(path), fix="replace it by the file")
        if path.is_file():
            size_bytes, sha256 = size_and_sha256(path)
            files.append(FileRef(path.relative_to(folder).as_posix(), size_bytes, sha256))
    return tuple(sorted(files, key=lambda file: file.path))


def verify(folder: Path, files: Sequence[FileRef]) -> None:
    """Raises DataError, naming the first damaged file, unless every file exists with the recorded size and digest."""
    for file in files:
        path = folder / file.path
        # The list comes from an event, possibly imported from an untrusted source.
        try:
            inside = path.resolve().is_relative_to(folder.resolve())
            exists = path.is_file()
        except (OSError, ValueError) as error:
            raise DataError(f"{file.path[:80]!r} is not a file name: {error}", where=str(folder)) from error
        if not inside:
            raise DataError(f"{file.path!r} lies outside of the checkpoint", where=str(folder))
        if not exists:
            raise _damage_error(path, "is missing")
        if path.stat().st_size != file.size_bytes:  # before reading the bytes, which may be many gigabytes
            raise _damage_error(path, f"has {path.stat().st_size} bytes instead of {file.size_bytes}")
        if size_and_sha256(path)[1] != file.sha256:
            raise _damage_error(path, "has other bytes than were committed")


def mark_latest(job_dir: Path, stage_step: int) -> None:
    """Writes both marker files, atomically and durably: `global_step_<stage_step>` is the newest checkpoint."""
    stage_markers(job_dir, stage_step)
    place_markers(job_dir)


def stage_markers(job_dir: Path, stage_step: int, *, within: Path | None = None) -> None:
    """First phase for the markers: writes and syncs both under temporary names, or `within` a trainer's workplace."""
    for name in (LATEST_WEIGHTS, LATEST_CHECKPOINT):
        with _temporary_path(job_dir / name, within, "tmp").open("w", encoding="ascii") as file:
            file.write(str(stage_step))
            file.flush()
            os.fsync(file.fileno())


def place_markers(job_dir: Path, *, within: Path | None = None) -> None:
    """Second phase for the markers: renames both. Raises FencedError if a successor removed the staged markers, and so
    owns the final ones.
    """
    # Weights first: after a crash in between, the marker used for resuming names the older, complete checkpoint.
    for name in (LATEST_WEIGHTS, LATEST_CHECKPOINT):
        faults.point("workplace.before_marker")
        try:
            _temporary_path(job_dir / name, within, "tmp").replace(job_dir / name)
        except FileNotFoundError:
            raise _taken_over_error(job_dir / name) from None
        faults.point("checkpoint.between_markers")
    sync_folder(job_dir)


def mend_markers(job_dir: Path, retained: Collection[str]) -> None:
    """Moves the markers of deleted checkpoints to the newest existing one in `retained`; removes the markers if there
    is none.

    For a folder without further trainers. A marker of a checkpoint in `retained`, with a folder moved away by a person,
    is left.
    """
    try:
        missing_paths = [str(path) for path in _marked_folders(job_dir) if not path.is_dir()]
    except DataError:
        return
    if not missing_paths or any(path in retained for path in missing_paths):
        return
    existing_paths = [path for path in map(Path, retained) if path.parent == job_dir and path.is_dir()]
    if existing_paths:
        mark_latest(job_dir, max(int(path.name.removeprefix("global_step_")) for path in existing_paths))
        return
    for name in (LATEST_WEIGHTS, LATEST_CHECKPOINT):
        (job_dir / name).unlink(missing_ok=True)
    sync_folder(job_dir)


def misses_its_folder(job_dir: Path) -> bool:
    """True if a marker of the job's folder names a missing checkpoint."""
    try:
        return not all(path.is_dir() for path in _marked_folders(job_dir))
    except DataError:
        return True


def latest(job_dir: Path) -> int | None:
    """Returns N of the newest checkpoint by the marker; None without a marker. Raises DataError for a marker without a
    number.
    """
    return marked_step(job_dir / LATEST_CHECKPOINT)


def _marked_folders(job_dir: Path) -> list[Path]:
    """Returns the folders named by the markers."""
    steps = [marked_step(job_dir / name) for name in (LATEST_WEIGHTS, LATEST_CHECKPOINT)]
    return [job_dir / f"global_step_{step}" for step in steps if step is not None]


def marked_step(path: Path) -> int | None:
    """Returns N from a marker file; None for a missing file. Raises DataError for a file without a number."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    if not text.isdecimal() or len(text) > _STEP_DIGITS:
        raise DataError(f"{text[:40]!r} is no step", where=str(path), fix="write the N of the newest global_step_N")
    return int(text)


def fsync_tree(folder: Path) -> None:
    """Syncs `folder` with all files and folders below, so that the whole content survives a power cut."""
    for root, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(Path(root) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(root))  # the names, after their bytes


def _damage_error(path: Path, how: str) -> DataError:
    """Returns the error for a damaged checkpoint file."""
    return DataError(f"checkpoint file {path.name} {how}", where=str(path), fix="resume from an earlier checkpoint")
