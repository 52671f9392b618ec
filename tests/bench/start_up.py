"""What starting costs: `rftd --help` in CPU milliseconds, `rftd serve` in seconds until its own /readyz answered.

The reference in the same run is the bare interpreter (`python -c pass`). Run: python -P tests/bench/start_up.py
"""

from __future__ import annotations

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_of, tell


def cpu_ms(command: list[str]) -> float:
    """User and system time of one run of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def serve_ready_s() -> float:
    """Seconds from the start of the process to its `ready` line."""
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rftd.daemon", "serve", "--data", folder, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready"):
                break
        ready_s = time.monotonic() - began_s
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    return ready_s


def main() -> None:
    pairs = [
        (cpu_ms([sys.executable, "-P", "-m", "rftd.daemon", "--help"]), cpu_ms([sys.executable, "-c", "pass"]))
        for _ in range(7)
    ]
    helps, bares = zip(*pairs, strict=True)
    figures = {
        "help_cpu_ms": median_of(helps, 1),
        "bare_interpreter_cpu_ms": median_of(bares, 1),
        "help_ratio": round(statistics.median(helps) / statistics.median(bares), 2),
        "serve_ready_s": median_of((serve_ready_s() for _ in range(5)), 2),
    }
    tell(figures)


if __name__ == "__main__":
    main()
