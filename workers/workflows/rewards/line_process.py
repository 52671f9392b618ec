"""`LineProcess`: a Python module in a separate process, answering lines of JSON one for one.

The module reads text written by models. Its environment is minimal, without keys and without the experiment's variables
for explorers, and Python takes no settings from variables.
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
"""Variables passed to a process."""
_FAMILIES: Final = ("LC_*", "OMP_*", "MKL_*")
"""Patterns of further variables passed to a process."""
ANSWER_S: Final = 600.0
"""Seconds without an answer until a process is killed; the first answer may wait for a model to load."""


def process_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of an explorer's environment passed to processes of rewards: variables needed for computing."""
    environment = {name: setting for name, setting in environ.items() if name in _NAMES or matches(name, _FAMILIES)}
    return {"PATH": os.defpath, **environment}


class ProcessEnded(Exception):
    """The process ended instead of answering; `status` is its exit status, or minus the number of the ending signal."""

    def __init__(self, module: str, status: int, *, why: str = "") -> None:
        """`why` is appended to the message."""
        super().__init__(f"the process of {module} ended with status {status}{why}")
        self.status = status


class LineProcess:
    """Starts the module at the first request, and again after its end. Not for two threads at once."""

    def __init__(self, module: str, *, timeout_s: float = ANSWER_S) -> None:
        """Kills the process after `timeout_s` seconds without an answer."""
        self.environ: Mapping[str, str] = {"PATH": os.defpath}
        """Environment of the process at its start."""
        self._module = module
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        """The running process; None before the first request, and after the end of a process."""

    def ask(self, request: Any) -> Any:
        """Sends one line and returns its answer. Raises ProcessEnded if the process ends first."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        # A pipe has no time-out; killing the process ends the read.
        timer = threading.Timer(self._timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if answer.endswith("\n"):
            return json.loads(answer)
        self._process = None
        why = f": no answer within {self._timeout_s:g} s" if late.is_set() else ""
        raise ProcessEnded(self._module, process.wait(), why=why)

    def _start(self) -> subprocess.Popen[str]:
        """Starts the process."""
        self._process = subprocess.Popen(
            # -I: neither a file in the explorer's working folder nor a variable may decide what the process imports.
            [sys.executable, "-I", "-m", self._module],
            env=dict(self.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        # The process ends with its input, but not while computing.
        weakref.finalize(self, _kill_process, self._process)
        return self._process


def _kill_process(process: subprocess.Popen[str]) -> None:
    # Leaving the context closes the pipes and waits for the process.
    """Kills a process, and waits for its end."""
    with process:
        process.kill()
