"""Kills that are collected in runs of a few each, over as many calls as it takes: each run is a line of a record."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import psutil

SHARED = Path("/dev/shm")


class OneKill(Protocol):
    """A kill of a part of the system."""

    @property
    def part(self) -> str:
        """The part that was killed."""
        ...


class OneRun(Protocol):
    """A run with its kills."""

    @property
    def kills(self) -> Sequence[OneKill]:
        """The kills, in order."""
        ...


R = TypeVar("R", bound=OneRun)


def alive(process: psutil.Process) -> bool:
    """True if the process has not ended; a zombie has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def gone_after_s(processes: Sequence[psutil.Process], longest_s: float) -> float:
    """The time until all of them have ended, or a longer one than the limit."""
    began_s = time.monotonic()
    while any(map(alive, processes)) and time.monotonic() - began_s < longest_s:
        time.sleep(0.01)
    return time.monotonic() - began_s


def kill_options(parts: Sequence[str]) -> dict[str, Any]:
    """How many kills of each part there shall be, and where their record is."""
    return {
        "kills": (20, "Of each part, over all calls."),
        "parts": {"nargs": "+", "choices": parts, "default": list(parts)},
        "each_run": (6, "Kills of one run."),
        "record": (Path, "The file of the runs so far; without it a call starts anew."),
        "seconds": (7200.0, "After so long no new run is begun."),
    }


def collected(
    options: argparse.Namespace,
    kind: type[R],
    begin: Callable[[list[str], Path, int], R],
    *,
    ours: Callable[[R], bool] = lambda _: True,
) -> list[R]:
    """The runs of the record after new ones, until each part was killed often enough or the time is over.

    `begin` makes a run that kills some parts in turn, in a folder that is not there yet, by a seed. `ours` says which
    lines of the record are of this kind of run.
    """
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        record = options.record or Path(folder) / "record.jsonl"
        while True:
            lines = record.read_bytes().splitlines() if record.exists() else []
            runs = [run for run in (msgspec.json.decode(line, type=kind) for line in lines) if ours(run)]
            left = missing(options.parts, options.kills, runs)
            if not left or time.monotonic() - began_s > options.seconds:
                return runs
            number = len(runs) + 1
            run = begin(left[: options.each_run], Path(folder) / f"run-{number}", number)
            with record.open("ab") as file:
                file.write(msgspec.json.encode(run) + b"\n")


def missing(parts: Sequence[str], kills: int, runs: Sequence[OneRun]) -> list[str]:
    """The parts to kill yet, in turn."""
    done = Counter(kill.part for run in runs for kill in run.kills)
    return [part for number in range(kills) for part in parts if done[part] <= number]
