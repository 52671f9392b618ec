"""`LineProcess`: a Python module in a process of its own that answers lines of JSON, one for one.

It reads what models wrote. It has an environment that is made for it, without keys and without what an experiment gives
its explorers, and Python takes no settings from there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Final

from rftd.ops.machine_environment import matches
from rftd.workers.hosts.leftovers import MARK

_NAMES: Final = frozenset(
    {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", MARK}
)
_FAMILIES: Final = ("LC_*", "OMP_*", "MKL_*")
ANSWER_S: Final = 600.0
"""A process that has not answered for so long is ended; the first answer may have to wait for a model to be read."""


def process_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an explorer's environment that processes of its rewards have: what a computation needs."""
    found = {name: value for name, value in environ.items() if name in _NAMES or matches(name, _FAMILIES)}
    return {"PATH": os.defpath, **found}


class ProcessEnded(Exception):
    """The process ended instead of answering; `status` is its exit status, or minus the signal that ended it."""

    def __init__(self, module: str, status: int, *, why: str = "") -> None:
        super().__init__(f"the process of {module} ended with status {status}{why}")
        self.status = status


class LineProcess:
    """Starts the module when it is first asked, and again after it ended. Not for two threads at once."""

    def __init__(self, module: str, *, timeout_s: float = ANSWER_S) -> None:
        """Without an answer within `timeout_s` the process is killed."""
        self.environ: Mapping[str, str] = {"PATH": os.defpath}
        """The environment that it is started with."""
        self._module = module
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None

    def ask(self, asked: Any) -> Any:
        """The answer to one line. Raises ProcessEnded if there is none."""
        process = self._process or self._started()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        # A pipe has no time-out; ending the process ends the reading.
        timer = threading.Timer(self._timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if answer.endswith("\n"):
            return json.loads(answer)
        self._process = None
        why = f": it gave no answer within {self._timeout_s:g} s" if late.is_set() else ""
        raise ProcessEnded(self._module, process.wait(), why=why)

    def _started(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            # -I: neither a file of the folder that the explorer runs in nor a variable must choose what it imports.
            [sys.executable, "-I", "-m", self._module],
            env=dict(self.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        # It ends with its input, but not while it computes.
        weakref.finalize(self, _end, self._process)
        return self._process


def _end(process: subprocess.Popen[str]) -> None:
    # Leaving the context closes its pipes and waits for it.
    with process:
        process.kill()
