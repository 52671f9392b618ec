"""When files were written, on the world's clock: the disk's own would be years away from what processes believe."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

_MODIFIED = ("st_mtime", "st_mtime_ns")
_OTHERS = tuple(name for name in dir(os.stat_result) if name.startswith("st_") and name not in _MODIFIED)


class FileTimes:
    """Notes, by its number on the disk, what is written below a folder, and answers when somebody asks for times."""

    def __init__(self, root: Path, now_ns: Callable[[], int]) -> None:
        self._root = str(root)
        self._now_ns = now_ns
        self.gone: Callable[[str], None] = lambda _: None
        """Is told of what lost its name."""
        self.replaced: Callable[[str], None] = lambda _: None
        """Is told of what was put in the place of a file."""
        self._written: dict[int, int] = {}
        self._stat = os.stat

    @contextmanager
    def kept(self) -> Iterator[None]:
        """While it lasts, everybody's file operations pass here."""
        with ExitStack() as stack:
            opening = self._opening(io.open)
            for owner, name, made in (
                (io, "open", opening),
                (builtins, "open", opening),
                (os, "mkdir", self._named(os.mkdir, itself=True)),
                (os, "rename", self._named(os.rename)),
                (os, "replace", self._named(os.replace)),
                (os, "unlink", self._named(os.unlink)),
                (os, "rmdir", self._named(os.rmdir)),
                (os, "stat", self._asked(os.stat)),
                (os, "lstat", self._asked(os.lstat)),
            ):
                stack.enter_context(mock.patch.object(owner, name, made))
            yield

    def _note(self, path: object) -> None:
        try:
            self._written[self._stat(path).st_ino] = self._now_ns()  # type: ignore[call-overload]
        except OSError:
            return

    def _ours(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._root)

    def _opening(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            made = call(file, mode, *args, **options)
            if not set(mode).isdisjoint("wax+") and self._ours(file):
                self._note(made.fileno())
                self._note(os.path.dirname(file))
            return made

        return opened

    def _named(self, call: Callable[..., Any], *, itself: bool = False) -> Callable[..., Any]:
        def named(*args: Any, **options: Any) -> Any:
            made = call(*args, **options)
            for path in args[:2]:
                if self._ours(path):
                    self._note(os.path.dirname(path))
            if call.__name__ in ("rename", "rmdir") and self._ours(args[0]):
                self.gone(os.fspath(args[0]))
            if call.__name__ == "replace" and self._ours(args[1]):
                self.replaced(os.fspath(args[1]))
            if itself and self._ours(args[0]):
                self._note(args[0])
            return made

        return named

    def _asked(self, call: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def asked(*args: Any, **options: Any) -> os.stat_result:
            found = call(*args, **options)
            written_ns = self._written.get(found.st_ino)
            if written_ns is None or not self._ours(args[0]):
                return found
            others = {name: getattr(found, name) for name in _OTHERS}
            return os.stat_result(tuple(found), {**others, "st_mtime": written_ns / 1e9, "st_mtime_ns": written_ns})

        return asked
