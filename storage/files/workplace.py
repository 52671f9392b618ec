"""`Workplace`: the folder for renames prepared by a holder of the trainer's role.

    <folder>/.trainer-eN/NAME        written there, then renamed to <folder>/NAME
    <folder>/.trainer-eN/NAME.old    a replaced file or folder of this name
    <folder>/.trainer-eN/NAME.gone   about to be removed

N is the unique epoch of the holder's fence. Every change of a visible name is a rename out of the folder or into it:
the folder is created first, then the lease is confirmed, then the rename follows. A successor moves the folder away in
a single step before reading any files. A holder stopped in between and awake again therefore finds neither source nor
destination, and earlier renames are visible to the successor and undone.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rftd.ops import faults
from rftd.ops.durable import make_durable_folder, sync_folder
from rftd.ops.errors import DataError, FencedError
from rftd.ops.exchange import exchange
from rftd.storage.files.checkpoints import verify
from rftd.streams.events.checkpoint import FileRef

NAME: Final = re.compile(r"\.trainer-e([0-9]+)")
"""Form of a workplace's name, with the epoch."""
REPLACED_SUFFIX: Final = ".old"
"""Suffix of a file or folder in the workplace that was replaced by another of the same name."""
REMOVED_SUFFIX: Final = ".gone"
"""Suffix of a file or folder moved into the workplace in order to be removed."""


class Workplace:
    """The workplace of a lease holder, next to the changed files in `folder`; exists only during a change."""

    def __init__(self, folder: Path, epoch: int) -> None:
        """`epoch` is the epoch of the holder's lease."""
        self.folder = folder
        """Folder with the changed files."""
        self.epoch = epoch
        """Epoch of the holder's lease."""
        self.path = folder / f".trainer-e{epoch}"
        """Path of the workplace."""

    def open(self) -> None:
        """Creates the folder; to be called before the lease is confirmed, never between confirmation and a rename."""
        make_durable_folder(self.folder)
        self.path.mkdir(exist_ok=True)

    def discard(self, paths: Iterable[Path]) -> None:
        """Moves files and folders of `folder` into the workplace for removal; missing files are no error.

        Raises FencedError if a successor has taken the workplace away.
        """
        for path in paths:
            # A rename, not a removal: a stopped holder renames completely or, without a workplace, not at all; a
            # removal would continue file by file under another role holder.
            target = self.path / f"{path.name}{REMOVED_SUFFIX}"
            _remove_path(target)
            faults.point("workplace.before_discard")
            try:
                path.rename(target)
            except FileNotFoundError:
                if not self.path.is_dir():  # the destination is missing, not the source
                    raise taken_over(path) from None
            faults.point("workplace.after_discard")
        sync_folder(self.folder)

    def take_over(self, named_files: Mapping[str, Sequence[FileRef]]) -> list[Path]:
        """Takes over the workplaces of predecessors and undoes unfinished changes. Returns the paths put back.

        `named_files` has the paths named by events, with files where known. Only for the holder of the role.
        """
        if not self.folder.is_dir():
            return []
        before = [
            workplace
            for workplace in self.folder.iterdir()
            if (epoch := epoch_of(workplace.name)) and epoch < self.epoch
        ]
        if not before:
            return []
        self.open()
        # A single rename takes over a predecessor's whole folder: afterwards the predecessor's renames find no source
        # and no destination.
        for workplace in sorted(before):
            with suppress(FileNotFoundError):  # a predecessor has just removed it, empty
                workplace.rename(self.path / workplace.name)
        back = [
            restored
            for leftover in left_in(self.path)
            if (restored := self._put_back(leftover, named_files)) is not None
        ]
        sync_folder(self.folder)
        return back

    def _put_back(self, leftover: Path, named_files: Mapping[str, Sequence[FileRef]]) -> Path | None:
        """Restores a leftover that an event names, if whole here and not there; returns its path or None."""
        original = self.folder / original_of(leftover.name)
        files = named_files.get(str(original))
        # Without a list of files, only a path from its final name (REMOVED_SUFFIX) is known to be whole.
        half = not files and not leftover.name.endswith(REMOVED_SUFFIX)
        # Restores only paths named by events, whole here and not whole there: otherwise the successor's own work would
        # be undone.
        if files is None or half or not _is_intact(leftover, files) or _is_intact(original, files):
            return None
        if not original.exists():
            leftover.rename(original)
        elif not exchange(leftover, original):
            original.rename(leftover.with_name(f"{leftover.name}{REPLACED_SUFFIX}"))
            leftover.rename(original)
        return original

    def close(self) -> None:
        """Removes the folder with all content, once the lease was confirmed after the last rename."""
        faults.point("workplace.before_close")
        shutil.rmtree(self.path, ignore_errors=True)


def epoch_of(name: str) -> int:
    """Returns the epoch of the holder of a workplace by name; 0 for any other name."""
    match = NAME.fullmatch(name)
    return int(match[1]) if match else 0


def left_in(workplace: Path) -> Iterator[Path]:
    """Yields the files and folders in a workplace, including predecessors' workplaces moved inside."""
    try:
        paths = sorted(workplace.iterdir())
    except OSError:
        return
    for path in paths:
        if epoch_of(path.name):
            yield from left_in(path)
        else:
            yield path


def original_of(name: str) -> str:
    """Returns the final name for a file or folder in a workplace."""
    return name.removesuffix(REMOVED_SUFFIX).removesuffix(REPLACED_SUFFIX)


def taken_over(path: Path) -> FencedError:
    """Returns the error for a holder without a workplace."""
    return FencedError(
        "a later trainer has these files now",
        where=str(path),
        fix="nothing: this process's work is no longer needed",
    )


def _is_intact(path: Path, files: Sequence[FileRef]) -> bool:
    """True if the path exists with all files intact."""
    if not path.exists():
        return False
    try:
        verify(path, files)
    except DataError:
        return False
    return True


def _remove_path(path: Path) -> None:
    """Deletes a file or folder; a missing one is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
