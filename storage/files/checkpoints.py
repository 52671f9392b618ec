"""Checkpoint folders: registered in place, by the size and sha256 of each file.

    <job_dir>/global_step_N/actor/...            one checkpoint, complete as soon as it is visible
    <job_dir>/latest_checkpointed_iteration.txt  N of the newest
    <job_dir>/latest_state_dict_iteration.txt    N of the newest that holds model weights

Each is made in two halves: written and durable beside its name (a trainer's in its `workplace`), then renamed. What
lies below `actor` is the business of the trainer engine that wrote it.

Tensors that a checkpoint has in common with the one before, such as a stage's reference, are one file under two names:
they take up the disk once, and are there until the last folder that names them is removed.
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
LATEST_WEIGHTS: Final = "latest_state_dict_iteration.txt"
_STEP_DIGITS: Final = 18
"""Most digits of a marker; a damaged one may have any number of them."""
_SHARED_BYTES: Final = 4096
"""Smaller files take up no less when they are shared."""
_SHARED_SUFFIX: Final = ".safetensors"
"""Tensors alone: nobody edits them, and a configuration that is edited must not change in other checkpoints."""


class Former(NamedTuple):
    """A checkpoint that was committed before, of which equal files need not be kept twice."""

    folder: Path
    files: tuple[FileRef, ...]


class Staged(NamedTuple):
    """A folder that is written and durable, and not yet visible under its name."""

    temporary: Path
    replaced: Path
    """The path to which a folder of that name gives way, if the two cannot change places at once."""
    files: tuple[FileRef, ...]
    """Its files, ordered by path."""

    def clear(self) -> None:
        """Removes what was replaced."""
        for left in (self.temporary, self.replaced):
            shutil.rmtree(left, ignore_errors=True)


def commit_folder(folder: Path, write: Callable[[Path], None]) -> tuple[FileRef, ...]:
    """Runs `write` on a folder beside `folder`, makes it durable and renames it. Returns its files, ordered by path.

    A folder of that name, left by an earlier generation, is replaced. If `write` fails, nothing is left.
    """
    staged = stage_folder(folder, write)
    place_folder(staged, folder)
    staged.clear()
    return staged.files


def stage_folder(
    folder: Path, write: Callable[[Path], None], *, within: Path | None = None, former: Former | None = None
) -> Staged:
    """The first half: everything but the names, written beside `folder` or `within` a trainer's own workplace.

    A half-written folder that a predecessor left there is removed. Tensors that are those of `former` are its files.
    """
    make_durable_folder(folder.parent)
    if within is None:
        put_back(folder)  # before what is left is removed: the replaced folder may be the only whole one
    temporary = _beside(folder, within, "tmp")
    replaced = _beside(folder, within, "old")
    for left in (temporary, replaced):
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()
    try:
        write(temporary)
        files = files_of(temporary)
        if former is not None:
            _share(temporary, files, former)
        faults.point("checkpoint.before_sync")
        # Everything below is durable before the name is: a checkpoint that is visible is whole, after a power cut too.
        fsync_tree(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Staged(temporary, replaced, files)


def _share(folder: Path, files: Sequence[FileRef], former: Former) -> None:
    """Replaces tensors' files by those of `former` that are equal, where the file system lets one have two names."""
    known = {file.path: file for file in former.files}
    for file in files:
        if known.get(file.path) != file or not may_share(file.path, file.size_bytes):
            continue
        own = folder / file.path
        linked = own.with_name(f".{own.name}.linked")
        try:
            os.link(former.folder / file.path, linked)
            # Its bytes, not what was recorded of them: a checkpoint that was damaged since must damage no other one.
            if size_and_sha256(linked) == (file.size_bytes, file.sha256):
                linked.replace(own)
        except OSError:
            continue  # it is gone, or this file system knows no second name: then it is kept twice
        finally:
            linked.unlink(missing_ok=True)


def may_share(path: str, size_bytes: int) -> bool:
    """True if a file of a checkpoint may be that of another one, too."""
    return size_bytes >= _SHARED_BYTES and path.endswith(_SHARED_SUFFIX)


def place_folder(staged: Staged, folder: Path) -> None:
    """The second half: the folder becomes visible. Only for the holder of the trainer's role: it replaces another's.

    Raises FencedError if a successor took away what was staged; the successor's folder stays.
    """
    faults.point("checkpoint.before_rename")
    try:
        _place(staged, folder)
    except FileNotFoundError:
        raise _taken_over(folder) from None
    faults.point("checkpoint.after_rename")
    sync_folder(folder.parent)


def _place(staged: Staged, folder: Path) -> None:
    """Raises FileNotFoundError, `folder` being as it was, if what was staged is gone."""
    # A rename cannot replace a folder that holds files, as it replaces a file: hence the exchange.
    if not folder.exists():
        staged.temporary.rename(folder)
        return
    faults.point("checkpoint.before_exchange")
    if exchange(staged.temporary, folder):
        return
    # Two renames, with a moment in which the name is nobody's: `put_back` mends that after a crash.
    if not staged.temporary.exists():
        raise FileNotFoundError(staged.temporary)
    folder.rename(staged.replaced)
    try:
        staged.temporary.rename(folder)
    except FileNotFoundError:
        if staged.replaced.exists() and not folder.exists():
            staged.replaced.rename(folder)
        raise


def _taken_over(folder: Path) -> FencedError:
    return FencedError(
        "a later trainer writes this checkpoint now",
        where=str(folder),
        fix="nothing: what this process wanted to save is not needed any more",
    )


def _beside(path: Path, within: Path | None, kind: str) -> Path:
    """The path at which something is prepared that will be `path`."""
    if within is not None:
        return within / (path.name if kind == "tmp" else f"{path.name}.{kind}")
    return path.with_name(f".{path.name}.{kind}")


def put_back(folder: Path) -> None:
    """Undoes a replacement that was cut off after the old folder had made room. For the folder's only writer."""
    if folder.exists() or not folder.parent.is_dir():
        return
    old = _beside(folder, None, "old")
    if old.exists():
        old.rename(folder)
        sync_folder(folder.parent)


def files_of(folder: Path) -> tuple[FileRef, ...]:
    """Every file below `folder` with its size and digest, ordered by path. Raises DataError for a symbolic link."""
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():  # its digest would vouch for a file that lies elsewhere and may change
            raise DataError("a checkpoint holds a symbolic link", where=str(path), fix="replace it by the file")
        if path.is_file():
            size_bytes, sha256 = size_and_sha256(path)
            files.append(FileRef(path.relative_to(folder).as_posix(), size_bytes, sha256))
    return tuple(sorted(files, key=lambda file: file.path))


def verify(folder: Path, files: Sequence[FileRef]) -> None:
    """Raises DataError, naming the first damaged file, unless every file is there with its size and digest."""
    for file in files:
        path = folder / file.path
        # The list comes from an event, which may have been imported from a stranger.
        try:
            inside = path.resolve().is_relative_to(folder.resolve())
            found = path.is_file()
        except (OSError, ValueError) as error:
            raise DataError(f"{file.path[:80]!r} is no name of a file: {error}", where=str(folder)) from error
        if not inside:
            raise DataError(f"{file.path!r} lies outside of the checkpoint", where=str(folder))
        if not found:
            raise _damaged(path, "is missing")
        if path.stat().st_size != file.size_bytes:  # before its bytes are read: they may be many gigabytes
            raise _damaged(path, f"has {path.stat().st_size} bytes instead of {file.size_bytes}")
        if size_and_sha256(path)[1] != file.sha256:
            raise _damaged(path, "has other bytes than were committed")


def mark_latest(job_dir: Path, stage_step: int) -> None:
    """Writes both marker files: `global_step_<stage_step>` is the newest. Each is replaced at once, and durable."""
    stage_markers(job_dir, stage_step)
    place_markers(job_dir)


def stage_markers(job_dir: Path, stage_step: int, *, within: Path | None = None) -> None:
    """The first half: the markers are written and durable beside their names, or `within` a trainer's workplace."""
    for name in (LATEST_WEIGHTS, LATEST_CHECKPOINT):
        with _beside(job_dir / name, within, "tmp").open("w", encoding="ascii") as file:
            file.write(str(stage_step))
            file.flush()
            os.fsync(file.fileno())


def place_markers(job_dir: Path, *, within: Path | None = None) -> None:
    """The second half. Raises FencedError if a successor took away what was staged: the markers are its own by then."""
    # Weights first: a crash in between leaves the marker that resuming goes by on the older, whole checkpoint.
    for name in (LATEST_WEIGHTS, LATEST_CHECKPOINT):
        faults.point("workplace.before_marker")
        try:
            _beside(job_dir / name, within, "tmp").replace(job_dir / name)
        except FileNotFoundError:
            raise _taken_over(job_dir / name) from None
        faults.point("checkpoint.between_markers")
    sync_folder(job_dir)


def mend_markers(job_dir: Path, kept: Collection[str]) -> None:
    """Moves markers of checkpoints that are gone to the newest of `kept` that is there; removes them without one.

    For a folder to which no trainer comes back. The marker of a checkpoint in `kept` that a person took away is left.
    """
    try:
        gone = [str(path) for path in _marked(job_dir) if not path.is_dir()]
    except DataError:
        return
    if not gone or any(path in kept for path in gone):
        return
    there = [path for path in map(Path, kept) if path.parent == job_dir and path.is_dir()]
    if there:
        mark_latest(job_dir, max(int(path.name.removeprefix("global_step_")) for path in there))
        return
    for name in (LATEST_WEIGHTS, LATEST_CHECKPOINT):
        (job_dir / name).unlink(missing_ok=True)
    sync_folder(job_dir)


def misses_its_folder(job_dir: Path) -> bool:
    """True if a marker names a checkpoint that is not there."""
    try:
        return not all(path.is_dir() for path in _marked(job_dir))
    except DataError:
        return True


def latest(job_dir: Path) -> int | None:
    """N of the newest checkpoint by its marker; None without one. Raises DataError if the marker holds no number."""
    return marked_step(job_dir / LATEST_CHECKPOINT)


def _marked(job_dir: Path) -> list[Path]:
    """The folders that the markers name."""
    steps = [marked_step(job_dir / name) for name in (LATEST_WEIGHTS, LATEST_CHECKPOINT)]
    return [job_dir / f"global_step_{step}" for step in steps if step is not None]


def marked_step(path: Path) -> int | None:
    """N in a marker file; None if it is not there. Raises DataError if it holds no number."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    if not text.isdecimal() or len(text) > _STEP_DIGITS:
        raise DataError(f"{text[:40]!r} is no step", where=str(path), fix="write the N of the newest global_step_N")
    return int(text)


def fsync_tree(folder: Path) -> None:
    """Makes every file and folder below and including `folder` durable."""
    for root, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(Path(root) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(root))  # the names, after the bytes that they stand for


def _damaged(path: Path, how: str) -> DataError:
    return DataError(f"checkpoint file {path.name} {how}", where=str(path), fix="resume from an earlier checkpoint")
