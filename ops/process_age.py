"""The age of the process, including imports: the time waited by the person at the terminal."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_IMPORTED_S: Final = time.monotonic()
"""Monotonic second of this module's import."""
_START_TICKS: Final = 19
"""Index of a process's start time among the fields of /proc/self/stat that follow the name."""


def process_age_s() -> float:
    """Returns the seconds since the system started the process; if unknown, since the import of this module."""
    since_import_s = time.monotonic() - _IMPORTED_S
    try:
        # After the last bracket: the name before it may contain blanks and brackets.
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        start_s = int(fields[_START_TICKS]) / os.sysconf("SC_CLK_TCK")
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - start_s
    except (OSError, ValueError, IndexError, AttributeError):  # not Linux, or no /proc
        return since_import_s
    # A sandbox with all processes apparently started with the machine tells nothing.
    return max(age_s, since_import_s) if start_s > 0 else since_import_s
