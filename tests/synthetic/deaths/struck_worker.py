"""A worker process that is stopped or killed just before its n-th operation on files below a folder.

Run: struck_worker.py HOW N FOLDER NOTE ARGUMENT...: HOW is `stop` or `kill`; which operation it was is written to NOTE;
the arguments are those of `rftd`. Stopped, it goes on with that operation when somebody lets it.
"""

from __future__ import annotations

import builtins
import io
import os
import re
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMED = ("mkdir", "rename", "replace", "unlink", "rmdir", "listdir")
NUMBERS = re.compile(r"[0-9]+")


class Strike:
    """Counts operations, and strikes once."""

    def __init__(self, how: str, nth: int, folder: str, note: Path) -> None:
        self._signal = signal.SIGSTOP if how == "stop" else signal.SIGKILL
        self._left = nth
        self._folder = os.path.realpath(folder)
        self._note = note
        self._asked = os.readlink

    def passing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call is counted each time before it is made."""

        def counted(*arguments: Any, **options: Any) -> Any:
            if arguments and (path := self._path(arguments[0], options.get("dir_fd"))).startswith(self._folder):
                self._count(name, path)
            return call(*arguments, **options)

        return counted

    def writing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """An opening of a file is counted before it is made, if it is to write."""

        def counted(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not set(mode).isdisjoint("wax+") and (path := self._path(file, None)).startswith(self._folder):
                self._count("open", path)
            return call(file, mode, *arguments, **options)

        return counted

    def _path(self, path: object, folder: int | None) -> str:
        if isinstance(path, int):
            return self._of(path)
        if not isinstance(path, str | os.PathLike):
            return ""
        text = os.fspath(path)
        return os.path.join(self._of(folder), text) if folder is not None else os.path.abspath(text)

    def _of(self, descriptor: int) -> str:
        try:
            return self._asked(f"/proc/self/fd/{descriptor}")
        except OSError:
            return ""

    def _count(self, name: str, path: str) -> None:
        self._left -= 1
        if self._left == 0:
            inner = os.path.relpath(path, self._folder)
            self._note.write_text(f"{name} {NUMBERS.sub('N', inner)}")
            os.kill(os.getpid(), self._signal)


def main() -> None:
    """Arms the strike, and becomes the worker."""
    how, nth, folder, note, *arguments = sys.argv[1:]
    strike = Strike(how, int(nth), folder, Path(note))
    from rftd.storage.files import checkpoints, workplace

    for module in (checkpoints, workplace):
        module.exchange = strike.passing("exchange", module.exchange)  # type: ignore[attr-defined]
    for name in NAMED:
        setattr(os, name, strike.passing(name, getattr(os, name)))
    os.fsync = strike.passing("fsync", os.fsync)
    opening = strike.writing(io.open)
    io.open = opening
    builtins.open = opening
    sys.argv = ["rftd", *arguments]
    runpy.run_module("rftd.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
