"""Runs a Python text in a fork of the server of wardens, as a fresh interpreter would, without the start of one.

Part of the warden's program: imports the standard library alone.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
import traceback
from contextlib import suppress
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper

# As mypy reads it; the module typing takes longer to import than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from rftd.workers.workflows.sandbox.namespaces import Job


def run_text(job: Job) -> NoReturn:
    """Runs the Python text of a warm command in this process, as `python -Ic` would, and ends the process."""
    code = 1
    try:
        _forget_environment(job["environ"])
        for name in [name for name in sys.modules if name.partition(".")[0] == "rftd"]:
            del sys.modules[name]
        sys.argv = ["-c"]
        sys.stdin = TextIOWrapper(BufferedReader(FileIO(0, closefd=False)), "utf-8")
        sys.stdout, sys.stderr = (
            TextIOWrapper(
                BufferedWriter(FileIO(number, "w", closefd=False)), "utf-8", errors, line_buffering=number == 2
            )
            for number, errors in ((1, "strict"), (2, "backslashreplace"))
        )
        gc.unfreeze()
        main_module = sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(job["command"][2], "<string>", "exec"), main_module.__dict__)  # noqa: S102 - the command's own
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code and not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        for finish in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]  # as an interpreter
            with suppress(BaseException):
                finish()
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        os._exit(code & 0xFF)


def _forget_environment(environ: dict[str, str]) -> None:
    """Replaces the variables of this process, also where /proc shows those of its start."""
    os.environ.clear()
    with open("/proc/self/stat") as file:
        begin, end = (int(word) for word in file.read().rpartition(")")[2].split()[47:49])
    if 0 < begin < end:
        ctypes.memset(begin, 0, end - begin)
    os.environ.update(environ)
