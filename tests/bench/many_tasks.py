"""Very many tasks that are added at once by `rftd tasks add`: the memory of the command, the daemon, and the next one.

All lines of one file are added to a queue whose run goes on meanwhile; then the daemon is killed, and the next one
takes the run up. Run: python -P tests/bench/many_tasks.py [--tasks 10000000]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import memory_bytes, read_options, tell
from synthetic.daemon.scene import EXPERIMENT, QUEUE, Scene

from rftd.daemon.http.views import commands
from rftd.daemon.http.views import tasks as view

MOST_MIB: Final = 400
"""The memory that the daemon may have: as much as with ten million records."""


def write_tasks(path: Path, count: int) -> None:
    """Writes one sum to a line."""
    with path.open("w") as file:
        for number in range(count):
            file.write(json.dumps({"question": f"{number}+1=", "answer": str(number + 1)}) + "\n")


def added_by_command(scene: Scene, name: str, file: Path) -> tuple[float, float]:
    """The seconds that the command took, and its peak of memory."""
    began_s = time.monotonic()
    command = [sys.executable, "-P", "-m", "rftd.daemon", "tasks", "add", name, str(file)]
    process = subprocess.Popen(command, cwd=scene.folder, env=scene.environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"rftd tasks add ended with status {process.returncode}")
    return time.monotonic() - began_s, usage.ru_maxrss / 1024


def main() -> int:
    """Prints the figures as JSON; 1 if a task is missing or the daemon took more memory than it may."""
    options = read_options(__doc__, tasks=10_000_000)
    with tempfile.TemporaryDirectory(prefix="rftd-tasks-") as folder:
        scene = Scene(Path(folder))
        file = scene.folder / "more.jsonl"
        write_tasks(file, options.tasks)
        with scene.host:
            name = scene.submit(EXPERIMENT, *QUEUE, "buffer.total_steps=1000000")
            scene.until_state(name, "running")
            before_mib = memory_bytes("VmHWM", scene.host.pid) / 2**20
            spent_s, command_mib = added_by_command(scene, name, file)
            daemon_mib = memory_bytes("VmHWM", scene.host.pid) / 2**20
            step = scene.until_step(name, 1).experiment.summary.step
            began_s = time.monotonic()
            scene.kill("daemon", name)
            scene.until_step(name, step + 1)
            taken_up_s = time.monotonic() - began_s
            next_mib = memory_bytes("VmHWM", scene.host.pid) / 2**20
            with scene.client() as client:
                (queue,) = client.ask(view.queues, name=name).value.items
                client.send(commands.cancel, commands.Reason(), name=name)
            scene.until_ended(name)
            report = scene.verified()
    tell(
        {
            "tasks": queue.added,
            "requests": queue.requests,
            "added_per_s": round(options.tasks / spent_s),
            "command_mib": round(command_mib),
            "daemon_before_mib": round(before_mib),
            "daemon_mib": round(daemon_mib),
            "next_daemon_mib": round(next_mib),
            "taken_up_s": round(taken_up_s, 1),
            "findings": len(report.findings),
        }
    )
    good = queue.added == options.tasks and report.clean and max(daemon_mib, next_mib) <= MOST_MIB
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
