"""Freed memory that the C library keeps goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

FREED_MIB = 256
PROGRAM = f"""
import ctypes
from rftd.ops.cycles import give_back

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = (ctypes.c_void_p,)
blocks = [library.malloc(65_536) for _ in range({FREED_MIB} * 16)]
for block in blocks:
    ctypes.memset(ctypes.c_void_p(block), 1, 65_536)
# The last block lies above the others and stays, so that the heap cannot shrink by itself.
for block in blocks[:-1]:
    library.free(block)
kept = resident_bytes()
give_back()
print((kept - resident_bytes()) >> 20)
give_back()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library says nothing of its heap")
def test_much_that_was_freed_goes_back() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0.9 * FREED_MIB
