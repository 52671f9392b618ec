"""`LivingWait`: the wait for a process that is alive, which has no end of its own and says how long it lasts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

EVERY_S: Final = 30.0
"""The time after which a wait is told to the person who waits, and then again and again."""


def say_beside(text: str) -> None:
    """Prints to standard error, so that what a verb answers stays alone on standard output."""
    click.echo(text, err=True)


class LivingWait:
    """One wait. A machine with much else to do is slow: only a process that has ended is an error."""

    def __init__(
        self,
        what: str,
        *,
        say: Callable[[str], None] = say_beside,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`what` is waited for, as in "Kafka has not answered"."""
        self._what = what
        self._say = say
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        self._due_s = self._began_s + EVERY_S

    def goes_on(self, pid: int | None, reason: str = "") -> None:
        """Says how long it lasts, if it is time for that; `pid` is the living process, `reason` what it said last."""
        now_s = self._monotonic_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        process = f"process {pid}" if pid is not None else "its process"
        because = f" ({reason})" if reason else ""
        self._say(f"{self._what} for {now_s - self._began_s:.0f} s{because}: {process} is alive, so this waits on")


def run_to_end(
    arguments: Sequence[str], what: str, *, cwd: Path | None = None, text: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The status and both outputs of a program once it has ended, however long that takes; `text` is its input.

    `options` are those of `subprocess.Popen`.
    """
    wait = LivingWait(what)
    pipe = subprocess.PIPE
    entry = subprocess.DEVNULL if text is None else pipe
    process = subprocess.Popen(arguments, cwd=cwd, stdin=entry, stdout=pipe, stderr=pipe, text=True, **options)
    try:
        while True:
            try:
                out, err = process.communicate(text, timeout=EVERY_S)
                return subprocess.CompletedProcess(arguments, process.returncode, out, err)
            except subprocess.TimeoutExpired:
                text = None  # it is being sent already
                wait.goes_on(process.pid)
    except BaseException:
        process.kill()
        process.wait()
        raise
