"""A real terminal of any size: command lines run in it, and every line that they drew comes back."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.cells import cell_len
from synthetic.until import PATIENCE_S

MARK = "\x1e"
"""Around the exit status behind each command line's output; nothing that is printed holds it."""
_DRIVER = """
import json, os, sys
from rftd.daemon.cli.cli import main

for arguments in json.loads(sys.argv[1]):
    try:
        status = main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(1, b"\\x1e%d\\x1e" % status)
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


_LINK: Final = re.compile(r"http://\S+")


@dataclass(frozen=True)
class Drawn:
    """One command line, its exit status, and each line that it drew, also those that it drew over."""

    arguments: tuple[str, ...]
    status: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wider_than(self, columns: int) -> list[str]:
        """The lines that a terminal of so many columns breaks; a link alone on its line cannot be shorter."""
        return [line for line in self.lines if cell_len(line) > columns and not _LINK.fullmatch(line)]


@dataclass(frozen=True)
class Terminal:
    """A terminal of this size."""

    columns: int
    rows: int

    def run(self, lines: Sequence[Sequence[str]], *, cwd: Path, environ: Mapping[str, str]) -> list[Drawn]:
        """The drawings of command lines of rftd. One process runs them all: most of each would be Python's start."""
        program = (sys.executable, "-P", "-c", _DRIVER, json.dumps([list(line) for line in lines]))
        parts = self.raw(program, cwd=cwd, environ=environ).split(MARK)
        assert len(parts) == 2 * len(lines) + 1, f"{lines[len(parts) // 2]} ended the process: {parts[-1]}"
        told = zip(lines, parts[::2], parts[1::2], strict=False)
        return [Drawn(tuple(line), int(status), drawn(text)) for line, text, status in told]

    def raw(self, program: Sequence[str], *, cwd: Path, environ: Mapping[str, str]) -> str:
        """Everything that a program wrote to this terminal until it ended."""
        unsized = {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")}
        ours, theirs = pty.openpty()
        try:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))
            process = subprocess.Popen(
                program, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env={**unsized, "TERM": "xterm-256color"}
            )
            os.close(theirs)
            with process:
                try:
                    return _read(ours)
                finally:
                    process.kill()
        finally:
            os.close(ours)


def drawn(text: str) -> tuple[str, ...]:
    """The lines of what a program wrote: each begins at the left edge, where a return goes to, too."""
    return tuple(_CONTROL.sub("", line) for each in text.split("\n") for line in each.split("\r") if line)


def _read(terminal: int) -> str:
    """Everything up to the end of all programs that have the terminal open."""
    deadline_s = time.monotonic() + PATIENCE_S
    found = bytearray()
    while time.monotonic() < deadline_s:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # Linux says so when nobody has the other side open any more
            return found.decode(errors="replace")
        found += part
    raise AssertionError(f"the program did not end: {found[-2000:].decode(errors='replace')}")
