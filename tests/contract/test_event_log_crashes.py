"""The embedded log against kill -9 and a full disk: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from synthetic.log.scan_chain import scan_chain

from rftd.streams.log.envelope import Record
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite.log import SqliteLog

A = Partition("rftd.experiments", 0)

WRITER = """
import asyncio, os, sys
from pathlib import Path
from uuid import UUID
from rftd.ops.errors import LogFullError
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import Partition

A = Partition("rftd.experiments", 0)

def draft(number):
    return Draft(A, UUID(int=number + 1), b"head-%d" % number, bytes([number % 251]) * 1000)

async def main():
    log = await SqliteLog.open(Path(sys.argv[1]))
    number = (await log.heads()).get(A, (0,))[0]
    os.write(1, b"open %d\\n" % number)
    while True:
        batch = [draft(number + index) for index in range(1 + number % 5)]
        await log.append(batch)
        number += len(batch)
        os.write(1, b"acked %d\\n" % number)

asyncio.run(main())
"""


async def everything(folder: Path) -> list[Record]:
    """All records, read by a restarted daemon."""
    log = await SqliteLog.open(folder)
    records = await log.read(A, 0, max_records=1 << 20, max_size_bytes=1 << 30)
    await log.close()
    return records


@pytest.mark.slow
def test_20_kills_at_random_moments_lose_nothing_acknowledged(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    acknowledged = 0
    for _ in range(20):
        command = [sys.executable, "-P", "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            opened = int(child.stdout.readline().split()[1])
            assert opened >= acknowledged, "an acknowledged record is gone"
            for _ in range(int(random.integers(1, 40))):
                assert child.stdout.readline()
            select.select([], [], [], float(random.random()) * 0.003)
            child.send_signal(signal.SIGKILL)
            acked = [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
        acknowledged = max(acknowledged, opened, *(int(line.split()[1]) for line in acked[-1:]))
    scan = scan_chain(tmp_path)
    assert scan.heads[A].next_offset >= acknowledged > 0
    records = asyncio.run(everything(tmp_path))
    assert [record.head for record in records] == [b"head-%d" % number for number in range(scan.records)]


@pytest.mark.parametrize("point", ["log.before_commit", "log.after_commit", "log.before_ack"])
def test_a_kill_at_each_fault_point_loses_nothing_acknowledged(tmp_path: Path, point: str) -> None:
    command = [sys.executable, "-P", "-c", WRITER, str(tmp_path)]
    child = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | {"RFTD_FAULTS": f"{point}=kill@7"})
    assert child.returncode == -signal.SIGKILL
    acknowledged = int(child.stdout.splitlines()[-1].split()[1])
    assert scan_chain(tmp_path).records >= acknowledged > 0


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from uuid import UUID
from rftd.ops.errors import LogFullError
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import Partition

A = Partition("rftd.experiments", 0)

def draft(number):
    return Draft(A, UUID(int=number + 1), b"head-%d" % number, bytes([number % 251]) * 5000)

async def main():
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    log = await SqliteLog.open(Path(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    number, refusals = 0, 0
    while refusals < 3:
        try:
            assert (await log.append([draft(number)]))[0].offset == number
            number += 1
        except LogFullError:
            assert log.failure is not None
            refusals += 1
    full_at = number
    assert len(await log.read(A, 0, max_records=10000, max_size_bytes=1 << 30)) >= full_at  # reads go on
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for number in range(full_at, full_at + 300):
        assert (await log.append([draft(number)]))[0].offset == number
    assert log.failure is None
    await log.close()
    print(full_at)

asyncio.run(main())
"""


def test_a_full_disk_refuses_appends_until_there_is_space(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    command = [sys.executable, "-P", "-c", FULL_DISK, str(tmp_path)]
    child = subprocess.run(command, stdout=subprocess.PIPE, timeout=240)
    assert child.returncode == 0
    full_at = int(child.stdout)
    assert full_at > 10
    scan = scan_chain(tmp_path)
    assert scan.records == full_at + 300
