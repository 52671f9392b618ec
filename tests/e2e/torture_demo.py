"""Demos beside each other, thirty busy processes and one that installs packages: all have to succeed."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv/bin"
# Installed from the cache, copied and compiled: it is the disk and the processor that it keeps busy, not the network.
INSTALLS = """
import subprocess, sys
uv, python, lock, target = sys.argv[1:]
while True:
    subprocess.run([uv, "venv", "-q", "--clear", "--python", python, target], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--link-mode", "copy", "--compile-bytecode", "--no-deps",
                    "--python", target + "/bin/python", "--require-hashes", "-r", lock], check=True)
"""


@contextmanager
def running(*arguments: str) -> Iterator[None]:
    """A process of its own group that is ended with its children when the block is left.

    It stays in this session: Linux shares the processor out by sessions where it can, and thirty of them would get
    thirty times what all the demos get together, where a machine without that gives each process the same.
    """
    process = subprocess.Popen(arguments, process_group=0)
    try:
        yield
    finally:
        subprocess.run(["kill", "-9", "--", f"-{process.pid}"], check=False)
        process.wait()


@contextmanager
def busy_machine(busy: int, folder: Path) -> Iterator[None]:
    """A machine with much else to do while the block runs."""
    with ExitStack() as stack:
        for _ in range(busy):
            stack.enter_context(running(sys.executable, "-c", "while True: pass"))
        lock = ROOT / "requirements/base.txt"
        installs = (str(BIN / "uv"), sys.executable, str(lock), str(folder / "installed"))
        stack.enter_context(running(sys.executable, "-c", INSTALLS, *installs))
        yield


def demo(folder: Path, number: int) -> subprocess.Popen[str]:
    """A demo with a folder of its own, whose output is kept."""
    arguments = [str(BIN / "rftd"), "demo", "--folder", str(folder / f"demo-{number}")]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main() -> int:
    """The exit status: 0 if every demo succeeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demos", type=int, default=3)
    parser.add_argument("--busy", type=int, default=30)
    options = parser.parse_args()
    began_s = time.monotonic()
    succeeded = 0
    with tempfile.TemporaryDirectory(prefix="rftd-torture-demo-") as name, busy_machine(options.busy, Path(name)):
        demos = [demo(Path(name), number) for number in range(1, options.demos + 1)]
        for number, process in enumerate(demos, 1):
            printed, _ = process.communicate()
            succeeded += process.returncode == 0
            spent_s = time.monotonic() - began_s
            sys.stdout.write(f"{printed}demo {number}: exit status {process.returncode}, over by {spent_s:.0f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{succeeded} of {options.demos}\n")
    return 0 if succeeded == options.demos else 1


if __name__ == "__main__":
    sys.exit(main())
