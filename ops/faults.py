"""Named points at which a test may kill, fail or delay a process; free when none is armed.

`RFTD_FAULTS="checkpoint.after_files=kill@3,planner.before_append=sleep:0.5"` arms two points: the process dies
(SIGKILL) at the third passage of the first, and sleeps at each passage of the second.
`checkpoint.after_files=kill@3!FILE` dies only after creating FILE, so a process restarted with an equal environment
survives. `NAME=stop@2` stops the process there (SIGSTOP), until SIGCONT. A point may be armed several times.

`RFTD_FAULTS_HITS=FILE` appends the name of each passed point once, as proof of a suite's coverage.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rftd.ops.errors import UsageError

POINTS: Final = frozenset(
    {
        "log.before_commit",
        "log.after_commit",
        "log.before_ack",
        "fence.before_read_back",
        "planner.before_append",
        "planner.after_append",
        "dispatcher.before_append",
        "dispatcher.after_append",
        "explorer.before_append",
        "explorer.after_append",
        "tracker.before_write",
        "tracker.before_settle",
        "tracker.before_cursor",
        "worker.before_join",
        "worker.after_join",
        "fleet.after_start",
        "submission.before_append",
        "submission.between_appends",
        "submission.after_append",
        "trainer.before_generation",
        "trainer.after_generation",
        "trainer.before_step",
        "trainer.before_step_append",
        "trainer.after_step_append",
        "weights.after_files",
        "weights.after_append",
        "weights.before_removal",
        "checkpoint.before_sync",
        "checkpoint.before_rename",
        "checkpoint.before_exchange",
        "checkpoint.after_rename",
        "checkpoint.between_markers",
        "checkpoint.after_files",
        "checkpoint.after_append",
        "checkpoint.before_removal",
        "workplace.after_listing",
        "workplace.before_marker",
        "workplace.before_discard",
        "workplace.after_discard",
        "workplace.before_close",
        "artifact.before_rename",
        "artifact.after_rename",
        "garbage.before_removal",
        "garbage.after_rename",
        "archive.after_file",
        "archive.after_append",
        "restore.after_files",
        "removal.after_append",
        "snapshot.before_rename",
        "snapshot.after_rename",
        "projector.before_commit",
        "projector.after_commit",
        "controller.before_append",
        "controller.after_append",
    }
)
"""Names of all points."""


class InjectedFault(OSError):
    """The failure raised by an armed `fail` point, an OSError as from a broken disk."""


@dataclass(slots=True)
class _Armed:
    """An armed action of a point: kind, argument, remaining passages, and a file for striking once."""

    action: str
    """What happens at the point: `kill`, `fail`, `stop` or `sleep`."""
    argument: float
    """Seconds of a sleep."""
    countdown: int
    """Passages until the action, including the one with it; the action then happens at every passage."""
    once: Path | None
    """File created by the action, which then never happens again; None without one."""


class Faults:
    """The fault points armed in this process, parsed once from the environment."""

    def __init__(self, specification: str = "", hits_path: Path | None = None) -> None:
        """Parses armed points, as in `RFTD_FAULTS`; `hits_path` is the file of passed points."""
        self._armed: dict[str, list[_Armed]] = {}
        for arming in filter(None, specification.split(",")):
            name, armed = _parse(arming)
            self._armed.setdefault(name, []).append(armed)
        self._hits_path = hits_path
        self._passed: set[str] = set()

    def point(self, name: str) -> None:
        """Marks the code as reaching the point `name`; if the point is armed, kills, stops, fails or delays the
        process.
        """
        assert name in POINTS, name
        if self._hits_path is not None and name not in self._passed:
            self._passed.add(name)
            with self._hits_path.open("a") as hits:
                hits.write(name + "\n")
        for armed in self._armed.get(name, ()):
            armed.countdown -= 1
            if armed.countdown <= 0 and _first(armed.once):
                _strike(name, armed)


def _strike(name: str, armed: _Armed) -> None:
    """Carries out an armed action: kills, stops, fails or delays the process."""
    if armed.action == "kill":
        # Not `sys.exit` nor `os.abort`: no handler, `finally` or buffer gets a chance, as in a crash.
        os.kill(os.getpid(), signal.SIGKILL)
    elif armed.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif armed.action == "fail":
        raise InjectedFault(f"injected at {name}")
    else:
        time.sleep(armed.argument)


def _first(once: Path | None) -> bool:
    """True if the action has not struck before; the file is the memory across processes."""
    if once is None:
        return True
    try:
        once.touch(exist_ok=False)  # O_EXCL: of several simultaneous processes only one creates the file
    except FileExistsError:
        return False
    return True


def _parse(arming: str) -> tuple[str, _Armed]:
    """Parses one arming of `RFTD_FAULTS` into its point and action. Raises UsageError."""
    name, _, action = arming.partition("=")
    action, _, once = action.partition("!")
    action, _, count = action.partition("@")
    kind, _, argument = action.partition(":")
    if name not in POINTS or kind not in {"kill", "stop", "fail", "sleep"}:
        raise UsageError(
            f"{arming!r} arms no fault point", field="RFTD_FAULTS", fix="use NAME=kill|stop|fail|sleep:S[@N][!FILE]"
        )
    return name, _Armed(kind, float(argument or 0), int(count or 1), Path(once) if once else None)


_process = Faults(
    os.environ.get("RFTD_FAULTS", ""),
    Path(path) if (path := os.environ.get("RFTD_FAULTS_HITS")) else None,
)
"""Fault points of this process, from the environment."""
# Armed per process from outside, like a debugger: the one deliberate global, read-only after import.

point = _process.point
"""Marks the passage of a named point in this process."""
