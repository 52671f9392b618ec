"""The age of a process counts from its start, not from an import."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import time
began_s = time.monotonic()
while time.monotonic() < began_s + 0.1:
    pass
from rftd.ops.process_age import process_age_s
passed_s = time.monotonic() - began_s
# The system counts in hundredths of a second.
print(process_age_s() > passed_s - 0.02)
"""


def test_what_was_before_the_import_counts() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", done.stderr
