"""`LivingWait`: an unlimited wait for a living process, with regular reports of its duration."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

EVERY_S: Final = 30.0
"""Seconds between two reports of a wait."""


def say_beside(text: str) -> None:
    """Prints to standard error, keeping standard output for a verb's answer."""
    click.echo(text, err=True)


class LivingWait:
    """One wait. A busy machine is slow: only an ended process is an error."""

    def __init__(
        self,
        subject: str,
        *,
        say: Callable[[str], None] = say_beside,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`subject` describes the wait, as in "Kafka has not answered"."""
        self._subject = subject
        self._say = say
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        """Monotonic time of the wait's begin."""
        self._due_s = self._began_s + EVERY_S
        """Monotonic time of the next report."""

    def goes_on(self, pid: int | None, reason: str = "") -> None:
        """Reports the duration if a report is due; `pid` is the living process, `reason` its last message."""
        now_s = self._monotonic_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        process = f"process {pid}" if pid is not None else "its process"
        because = f" ({reason})" if reason else ""
        self._say(f"{self._subject} for {now_s - self._began_s:.0f} s{because}: {process} is alive, so this waits on")


def run_to_end(
    arguments: Sequence[str], subject: str, *, cwd: Path | None = None, text: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program to the end, however long that takes, and returns status and both outputs; `text` becomes the
    input.

    `options` are passed to `subprocess.Popen`. Reports every half minute while the process lives.
    """
    wait = LivingWait(subject)
    pipe = subprocess.PIPE
    stdin = subprocess.DEVNULL if text is None else pipe
    process = subprocess.Popen(arguments, cwd=cwd, stdin=stdin, stdout=pipe, stderr=pipe, text=True, **options)
    try:
        while True:
            try:
                out, err = process.communicate(text, timeout=EVERY_S)
                return subprocess.CompletedProcess(arguments, process.returncode, out, err)
            except subprocess.TimeoutExpired:
                text = None  # already being sent
                wait.goes_on(process.pid)
    except BaseException:
        process.kill()
        process.wait()
        raise
