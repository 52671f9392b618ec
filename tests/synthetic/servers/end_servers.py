"""Ends the servers whose process.json lies below a folder; as a program: when whoever started it is gone.

A test run that is killed runs no fixture's end. This program waits at the other end of a pipe, which the kernel closes.
"""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import psutil


def end_servers(folder: Path) -> None:
    """SIGKILLs each server that still is the process that was started, and deletes `folder`."""
    for path in folder.rglob("process.json"):
        with suppress(psutil.Error, OSError, ValueError):
            started = json.loads(path.read_text())
            process = psutil.Process(started["pid"])
            if abs(process.create_time() - started["process_start_s"]) <= 0.02:
                family = [process, *process.children(recursive=True)]
                for member in family:
                    with suppress(psutil.Error):
                        member.kill()
                psutil.wait_procs(family, timeout=30)
    for path in folder.rglob("elsewhere"):  # a cluster that could not lie here
        with suppress(OSError):
            shutil.rmtree(path.read_text().strip(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # returns when the other end is closed, by its owner or by its owner's death
    end_servers(Path(sys.argv[1]))
