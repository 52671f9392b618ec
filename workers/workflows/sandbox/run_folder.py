"""`RunFolder`: the folder of one sandboxed run, removed at its end, and after a crash by the next process.

A folder is locked by every process that needs it, the explorer and the run's warden: a folder without a lock belongs to
nobody. Files in it may be a stranger's, so no link is followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final

from rftd.ops import limits
from rftd.ops.cancelling import undisturbed
from rftd.ops.errors import RolloutError

WORK: Final = "work"
"""The command's folder within the run's."""
_INNER_FOLDERS: Final = (WORK, "tmp", "root")
_PREFIX: Final = "run-"
"""Prefix of the names of runs' folders."""
# Between the users of people and those of the kernel's overflow: no account has these numbers by default.
_FIRST_UID: Final = 61_184
_UIDS: Final = 4_336
"""Number of user ids for runs."""


class RunFolder:
    """A folder for one run, with the command's files below `work`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path: Final = path
        self.lock: Final = lock
        """Descriptor of the locked folder, inherited by the warden."""

    @property
    def uid(self) -> int:
        """User of the command, if the explorer is root: hardly any two runs at once have an equal one."""
        return _FIRST_UID + zlib.crc32(self.path.name.encode()) % _UIDS

    def copy(self, source: Path) -> None:
        """Copies a folder's content into the run's, with links as links. Blocks. Raises RolloutError."""
        try:
            shutil.copytree(source, self.path / WORK, symlinks=True, dirs_exist_ok=True, ignore=only_plain)
        except (OSError, shutil.Error) as error:
            raise RolloutError(f"cannot copy the folder: {error}", where=str(source)) from error

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, and the folders above. Raises RolloutError for a name leading out."""
        parts = _parts(name)
        with self._opened_folder(parts[:-1], make=True) as folder:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
                descriptor = os.open(parts[-1], flags, 0o600, dir_fd=folder)
            except OSError as error:
                raise RolloutError(f"cannot write the file: {error.strerror}", where=name) from error
            with open(descriptor, "wb") as file:
                file.write(content)

    def set_input(self, content: bytes) -> None:
        """Sets the standard input of the command, outside of the command's own files."""
        (self.path / "input").write_bytes(content)

    def read(self, name: str, size_bytes: int = limits.SANDBOX_FILE_SIZE_BYTES) -> bytes | None:
        """Returns a file written by the command; None without one. Raises RolloutError for a link, a pipe, or a larger
        file.
        """
        parts = _parts(name)
        try:
            with self._opened_folder(parts[:-1], make=False) as folder:
                # Without waiting: opening a pipe would wait for its writer.
                descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RolloutError(f"the file of the command cannot be read: {error.strerror}", where=name) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise RolloutError("the command wrote no plain file", where=name)
        with open(descriptor, "rb") as file:
            content = file.read(size_bytes + 1)
        if len(content) > size_bytes:
            raise RolloutError(f"the file of the command has more than {size_bytes} bytes", where=name)
        return content

    def give(self, uid: int) -> None:
        """Makes a user the owner of the command's files. Blocks."""
        for name in (WORK, "tmp"):
            for _, folders, files, descriptor in os.fwalk(self.path / name, follow_symlinks=False):
                os.chown(descriptor, uid, uid)
                for inner in (*folders, *files):
                    os.chown(inner, uid, uid, dir_fd=descriptor, follow_symlinks=False)

    @contextmanager
    def _opened_folder(self, parts: tuple[str, ...], *, make: bool) -> Iterator[int]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        descriptor = os.open(self.path / WORK, flags)
        try:
            for name in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=descriptor)
                inner = os.open(name, flags, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def run_folder(home: Path | None = None) -> Iterator[RunFolder]:
    """Makes a folder for one run, and removes it afterwards. Blocks.

    Folders lie below `home`, by default in the machine's folder of temporary files.
    """
    home = _own_home(home or Path(tempfile.gettempdir()) / f"rftd-sandbox-{os.getuid()}")
    with _locked(home):
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home))
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    folder = RunFolder(path, lock)
    try:
        # Passage for the command's user, who knows the name; its own folders are closed to everybody else.
        path.chmod(0o711)
        for name in _INNER_FOLDERS:
            (path / name).mkdir(mode=0o700)
        yield folder
    finally:
        remove(path)
        os.close(lock)


@asynccontextmanager
async def rollout_folder(home: Path | None = None) -> AsyncIterator[RunFolder]:
    """Makes a folder as `run_folder`, and removes it on a thread."""
    with ExitStack() as stack:
        folder = stack.enter_context(run_folder(home))
        try:
            yield folder
        finally:
            removal = stack.pop_all()
            await undisturbed(asyncio.to_thread(removal.close))


async def on_thread(call: Callable[..., None], *arguments: Any) -> None:
    """Runs a blocking call about a folder on a thread; a cancelled caller waits for its end, before the folder goes."""
    work = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


def remove_left_folders(home: Path | None = None) -> None:
    """Removes folders of processes that died. Blocks."""
    home = home or Path(tempfile.gettempdir()) / f"rftd-sandbox-{os.getuid()}"
    if not home.is_dir():
        return
    with _locked(home):
        for path in home.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError), _opened(path) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)


def remove(path: Path) -> None:
    """Removes a folder, whatever permissions the command left in it."""
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        return
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):
        for inner in (os.path.join(folder, name) for name in names):
            if not os.path.islink(inner):
                with contextlib.suppress(OSError):
                    os.chmod(inner, 0o700)  # before it is listed in its turn
    shutil.rmtree(path, ignore_errors=True)


def _own_home(home: Path) -> Path:
    """Returns the folder, made if missing. Raises RolloutError if another user made it."""
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o711, parents=True)
        home.chmod(0o711)
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise RolloutError(
            "the folder for sandboxes is not this user's alone", where=str(home), fix="remove it, or set TMPDIR"
        )
    return home


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Excludes the removal of a folder between its making and its lock."""
    with _opened(home) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise RolloutError("a file of a command needs a plain name within its folder", where=name)
    return path.parts


def only_plain(folder: str, names: list[str]) -> list[str]:
    """Returns the names to leave out of a copy: pipes, sockets and devices."""
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return [
        name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]
