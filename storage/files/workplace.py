"""`Workplace`: the folder in which a holder of the trainer's role prepares what it renames (rule 2).

    <folder>/.trainer-eN/NAME        is written there, then renamed to <folder>/NAME
    <folder>/.trainer-eN/NAME.old    made room for another of its name
    <folder>/.trainer-eN/NAME.gone   is on its way out

N is the epoch of the holder's fence, which no other ever has. Every change of a name that others see is a rename out of
this folder or into it: the folder is made first, then the lease is confirmed, then comes the rename. A successor takes
the folder away, at one blow, before it looks at anything. So a holder that was stopped in between and wakes finds
neither source nor destination, and its earlier renames are seen by its successor, who undoes them.
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
REPLACED: Final = ".old"
GONE: Final = ".gone"


class Workplace:
    """The workplace of one holder, beside what it changes in `folder`; it is there only while something is changed."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self.folder = folder
        self.epoch = epoch
        self.path = folder / f".trainer-e{epoch}"

    def open(self) -> None:
        """Makes the folder; to be called before the lease is confirmed, and never between that and a rename."""
        make_durable_folder(self.folder)
        self.path.mkdir(exist_ok=True)

    def discard(self, paths: Iterable[Path]) -> None:
        """Takes files and folders of `folder` away from their names; what is gone already is no error.

        Raises FencedError if a successor has taken the workplace away.
        """
        for path in paths:
            # A rename, not a removal: it is one step, which a holder that was stopped takes whole or, its workplace
            # gone, not at all; a removal goes on file by file, whoever holds the role by then.
            target = self.path / f"{path.name}{GONE}"
            _remove(target)
            faults.point("workplace.before_discard")
            try:
                path.rename(target)
            except FileNotFoundError:
                if not self.path.is_dir():  # the destination is missing, not the source
                    raise taken_over(path) from None
            faults.point("workplace.after_discard")
        sync_folder(self.folder)

    def take_over(self, wanted: Mapping[str, Sequence[FileRef]]) -> list[Path]:
        """Takes away the workplaces of predecessors and undoes what they left half done. Returns the paths put back.

        `wanted` has what events name, by path, with its files where they are known. Only for the holder of the role.
        """
        if not self.folder.is_dir():
            return []
        before = [each for each in self.folder.iterdir() if (epoch := epoch_of(each.name)) and epoch < self.epoch]
        if not before:
            return []
        self.open()
        # One rename takes a predecessor's whole folder: from then on its own renames find no source and no destination.
        for each in sorted(before):
            with suppress(FileNotFoundError):  # a predecessor has just left it, empty
                each.rename(self.path / each.name)
        back = [place for left in left_in(self.path) if (place := self._put_back(left, wanted)) is not None]
        sync_folder(self.folder)
        return back

    def _put_back(self, left: Path, wanted: Mapping[str, Sequence[FileRef]]) -> Path | None:
        place = self.folder / original_of(left.name)
        files = wanted.get(str(place))
        # Without a list of files only something that had its name before (GONE) is known to be whole.
        half = not files and not left.name.endswith(GONE)
        # Only what events name, is whole here and is not whole there: else the successor's own work would be undone.
        if files is None or half or not _whole(left, files) or _whole(place, files):
            return None
        if not place.exists():
            left.rename(place)
        elif not exchange(left, place):
            place.rename(left.with_name(f"{left.name}{REPLACED}"))
            left.rename(place)
        return place

    def close(self) -> None:
        """Removes the folder with all that is in it, once the lease was confirmed after the last rename."""
        faults.point("workplace.before_close")
        shutil.rmtree(self.path, ignore_errors=True)


def epoch_of(name: str) -> int:
    """The epoch of the holder whose workplace has this name; 0 if it is the name of none."""
    found = NAME.fullmatch(name)
    return int(found[1]) if found else 0


def left_in(workplace: Path) -> Iterator[Path]:
    """The things in a workplace, and in those of predecessors that it took away."""
    try:
        entries = sorted(workplace.iterdir())
    except OSError:
        return
    for path in entries:
        if epoch_of(path.name):
            yield from left_in(path)
        else:
            yield path


def original_of(name: str) -> str:
    """The name that a thing in a workplace had, or was to get."""
    return name.removesuffix(GONE).removesuffix(REPLACED)


def taken_over(path: Path) -> FencedError:
    """The error of a holder that finds its workplace gone."""
    return FencedError(
        "a later trainer has these files now",
        where=str(path),
        fix="nothing: what this process wanted to do is not needed any more",
    )


def _whole(path: Path, files: Sequence[FileRef]) -> bool:
    if not path.exists():
        return False
    try:
        verify(path, files)
    except DataError:
        return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
