"""Freed memory that the C library keeps goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

AT_ONCE = "give_back()"
BY_A_DAEMON = """
class Minute(ManualClock):
    async def sleep(self, delay_s):
        if self.monotonic_s() > began_s + 60.0:
            raise TimeoutError
        await super().sleep(delay_s)

clock = Minute()
began_s = clock.monotonic_s()
try:
    asyncio.run(keep_trimmed(clock))
except TimeoutError:
    pass
"""
PROGRAM = """
import asyncio
import ctypes
import sys
from rftd.ops.clock import ManualClock
from rftd.ops.cycles import give_back, keep_trimmed

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = (ctypes.c_void_p,)
blocks = [library.malloc(65_536) for _ in range(int(sys.argv[1]) * 16)]
for block in blocks:
    ctypes.memset(ctypes.c_void_p(block), 1, 65_536)
# The last block lies above the others and stays, so that the heap cannot shrink by itself.
for block in blocks[:-1]:
    library.free(block)
kept = resident_bytes()
{work}
print((kept - resident_bytes()) >> 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library says nothing of its heap")
@pytest.mark.parametrize(
    ("freed_mib", "work", "least_mib"),
    [
        pytest.param(256, AT_ONCE, 230, id="much at once"),
        pytest.param(32, AT_ONCE, 0, id="less, which is soon used again"),
        pytest.param(32, BY_A_DAEMON, 28, id="less, of a daemon"),
    ],
)
def test_freed_memory_goes_back(freed_mib: int, work: str, least_mib: int) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM.format(work=work), str(freed_mib)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    returned_mib = int(done.stdout)
    assert returned_mib >= least_mib if least_mib else returned_mib < 4
