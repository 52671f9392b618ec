"""`SwanLab`: runs of SwanLab, online or offline, each in a process; SwanLab stores a single value of each figure per
step.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from rftd.ops.clock import Clock, SystemClock
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import ConfigError, UnreachableError
from rftd.workers.tracking.point import Point
from rftd.workers.tracking.remarks import Remarks
from rftd.workers.tracking.sample_text import plain_text
from rftd.workers.tracking.swanlab_run import RunAnswer, RunBeginning, RunLine
from rftd.workers.tracking.tracker import SURE_S, Kept, Opening

_RESERVED_ARGUMENTS: Final = ("id", "resume", "reinit", "experiment_name", "logdir", "tags", "settings")
"""Arguments that the tracker does not pass on unchanged."""
_STATES: Final = {"": "success", "completed": "success", "cancelled": "aborted"}
"""SwanLab's state of a run, by the experiment's end."""
_REFUSALS: Final = ("AuthenticationError", "RuntimeError", "ValidationError", "ValueError", "TypeError")
"""Errors of SwanLab that waiting does not fix: a missing or wrong key, an unknown argument."""
_COMMAND: Final = (sys.executable, "-P", "-m", "rftd.workers.tracking.swanlab_run")
"""Command of a run's process."""


class SwanLab:
    """Maintains the runs of one experiment, each under a separate id, so that a later process continues the runs."""

    sure_at_once = False
    """False: `settle` cannot always confirm storage, because only finished runs are certain to be stored."""

    def __init__(self, opening: Opening, clock: Clock | None = None) -> None:
        """Reads the arguments without starting a run."""
        self._run = opening.run
        """The tracked experiment."""
        self._folder = opening.folder
        """Folder for SwanLab's files."""
        self._args = opening.args
        """Arguments of the tracker."""
        self._clock = clock or SystemClock()
        """Clock that measures the time since `settle` last finished the runs, compared with `SURE_S`."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """Process of each role's run."""
        self._remarks = Remarks()
        """Remarks of the runs, each shown as one text."""
        self._sure_s = 0.0

    def open(self, kept: Kept) -> None:
        """Continues from the state last returned by `settle`; runs begin at their first point."""
        self._finish("success")
        self._remarks = Remarks(kept)
        self._sure_s = self._clock.monotonic_s()

    def write(self, points: Sequence[Point]) -> None:
        """Sends points to the runs' processes."""
        for point in points:
            role = self._run.run_of(point)
            if point.remark:
                self._send(role, RunLine(remarks=self._remarks.add(role, point)))
            elif point.samples:
                self._send(role, RunLine(step=point.step, texts={point.table: plain_text(point.samples)}))
            elif point.figures:
                self._send(role, RunLine(step=point.step, figures=dict(point.figures)))

    def settle(self, *, surely: bool) -> Kept | None:
        """Finishes the runs if `surely`, or every `SURE_S` seconds, and returns the state for `open`; else None."""
        if not surely and self._clock.monotonic_s() - self._sure_s < SURE_S:
            return None
        self._finish("success")
        self._sure_s = self._clock.monotonic_s()
        return self._remarks.kept()

    def close(self, ended: str) -> None:
        """Finishes the runs with the state of the experiment's end."""
        self._finish(_STATES.get(ended, "crashed"))

    def _send(self, role: str, line: RunLine) -> None:
        """Sends a line to a run's process, started on first use. Raises UnreachableError."""
        if role not in self._processes:
            self._processes[role] = self._begin(role)
        pipe = self._processes[role].stdin
        assert pipe is not None
        try:
            pipe.write(msgspec.json.encode(line) + b"\n")
            pipe.flush()
        except BrokenPipeError:
            self._abandon()
            raise UnreachableError("the process of a SwanLab run has ended") from None

    def _begin(self, role: str) -> subprocess.Popen[bytes]:
        """Starts the process of a run. Raises ConfigError, UnreachableError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(RunBeginning(arguments=self._arguments(role))) + b"\n")
        process.stdin.flush()
        error = _answer(process)
        if error:
            process.wait()
            if error in _REFUSALS:
                fix = "export SWANLAB_API_KEY, or write monitor_args: {mode: offline}"
                raise ConfigError(f"SwanLab begins no run: {error}", field="monitor.monitor_args", fix=fix)
            raise UnreachableError(f"SwanLab begins no run: {error}")
        return process

    def _arguments(self, role: str) -> dict[str, Any]:
        """Returns the arguments of a run's beginning."""
        handed_on = {
            name: setting
            for name, setting in self._args.items()
            if name not in _RESERVED_ARGUMENTS and setting is not None
        }
        title = self._run.title(role)
        if self._args.get("experiment_name"):
            title = title.replace(self._run.name, str(self._args["experiment_name"]), 1)
        config = {**self._run.config, "rftd_experiment": self._run.experiment, "rftd_digest": self._run.digest}
        return {
            **handed_on,
            "project": self._run.project,
            "group": self._run.group,
            "name": title,
            "job_type": role or None,
            "tags": [*(self._args.get("tags") or ()), *([role] if role else [])],
            "id": "-".join(text for text in (self._run.experiment, role) if text),
            "resume": "allow",
            "log_dir": str(self._args.get("logdir") or self._folder),
            "config": config,
            "settings": self._args.get("settings") or {},
        }

    def _finish(self, state: str) -> None:
        """Waits until the library has stored everything, and closes the runs."""
        processes = self._processes
        self._processes = {}
        for process in processes.values():
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(RunLine(state=state)) + b"\n")
                process.stdin.close()
        errors = [_answer(process) for process in processes.values()]
        codes = [process.wait() for process in processes.values()]
        if any(errors) or any(codes):
            raise UnreachableError("SwanLab did not finish a run")

    def _abandon(self) -> None:
        """Kills the processes of all runs; points are sent again later."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes = {}


def _answer(process: subprocess.Popen[bytes]) -> str:
    """Returns the error name answered by the process; empty after success."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return json_decoder(RunAnswer).decode(line).error if line else "its process ended"
