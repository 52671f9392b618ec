"""There is room, there is none, there is some again: what is said, and that one byte more or less does not flap."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rftd.daemon.run.supervisor import disk_guard
from rftd.daemon.run.supervisor.disk_guard import (
    COLLECT_S,
    DiskGuard,
    DiskLimits,
    Reading,
    judge,
)
from rftd.ops import limits
from rftd.ops.clock import ManualClock
from rftd.ops.logs import logger
from rftd.ops.metrics import Metrics
from rftd.storage.files.disk import LocalDisk, Volume
from rftd.workers.control.hold import DISK_BUDGET, DISK_FULL

MIB = limits.MIB
DATA = Path("/data")


class Scripted:
    """Disks as a test wants them."""

    def __init__(self, free: int = 1000 * MIB, used: int = 0) -> None:
        self.free, self.used, self.error = free, used, False
        self.counted: list[Path] = []

    def volume(self, folder: Path) -> Volume:
        if self.error:
            raise OSError("stale file handle")
        return Volume(size_bytes=10_000 * MIB, free_bytes=self.free)

    def used_bytes(self, folders: Sequence[Path]) -> int:
        self.counted = list(folders)
        return self.used


def reading(free: int, used: int = 0, need: int = 0) -> Reading:
    return Reading(volumes={"/data": Volume(size_bytes=4000, free_bytes=free)}, used_bytes=used, need_bytes=need)


@pytest.mark.parametrize(
    ("free", "need", "short", "expected"),
    [
        (100, 0, False, None),
        (99, 0, False, DISK_FULL),
        (149, 50, False, DISK_FULL),
        (150, 50, False, None),
        (124, 0, True, DISK_FULL),
        (125, 0, True, None),
    ],
)
def test_the_reserve(free: int, need: int, short: bool, expected: str | None) -> None:
    found = judge(reading(free, need=need), DiskLimits(reserve_bytes=100), short=short)
    assert (found.cause if found else None) == expected


@pytest.mark.parametrize(
    ("used", "need", "short", "expected"),
    [
        (1000, 0, False, None),
        (1001, 0, False, DISK_BUDGET),
        (951, 50, False, DISK_BUDGET),
        (950, 0, True, None),
        (951, 0, True, DISK_BUDGET),
    ],
)
def test_the_budget(used: int, need: int, short: bool, expected: str | None) -> None:
    found = judge(reading(1, used, need), DiskLimits(reserve_bytes=0, budget_bytes=1000), short=short)
    assert (found.cause if found else None) == expected


def test_the_default_is_a_gibibyte_or_a_twentieth() -> None:
    allowed = DiskLimits()
    assert allowed.reserve_of(Volume(size_bytes=1 << 50, free_bytes=0)) == 1 << 30
    assert allowed.reserve_of(Volume(size_bytes=20 * MIB, free_bytes=0)) == MIB
    assert judge(reading(0), DiskLimits(reserve_bytes=0), short=False) is None, "0 switches it off"


def test_the_reason_says_how_much_and_what_to_do() -> None:
    found = judge(reading(90, need=20), DiskLimits(reserve_bytes=100), short=False)
    assert found is not None
    assert found.reason == "90 B are free on the volume of /data; 100 B stay free, and the next checkpoint takes 20 B"
    assert "free 30 B there" in found.fix
    assert "--disk-reserve" in found.fix


async def guard(disk: Scripted, **allowed: int) -> DiskGuard:
    return DiskGuard(
        disk, DATA, DiskLimits(**allowed), clock=ManualClock(), logger=logger(), metrics=Metrics(version="test")
    )


class Hanging(Scripted):
    """A file system that answers nobody until the test lets it, like one whose server is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.answers = threading.Event()

    def volume(self, folder: Path) -> Volume:
        self.asked += 1
        self.answers.wait(60)
        return super().volume(folder)


@pytest.mark.anyio
async def test_a_file_system_that_hangs_takes_one_thread_however_often_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_guard, "MEASURE_TIMEOUT_S", 0.01)
    disk = Hanging()
    found = await guard(disk, reserve_bytes=2000 * MIB)
    for _ in range(20):
        await found.look()
    assert disk.asked == 1
    assert found.shortage is None
    disk.answers.set()
    monkeypatch.setattr(disk_guard, "MEASURE_TIMEOUT_S", 60.0)
    await found.look()
    assert found.shortage is not None
    assert disk.asked == 1
    await found.look()
    assert disk.asked == 2


@pytest.mark.anyio
async def test_what_can_be_collected_is_collected_before_anybody_pauses() -> None:
    disk = Scripted(used=2000)
    found = await guard(disk, reserve_bytes=0, budget_bytes=1000)
    collected: list[str | None] = []

    async def collect() -> None:
        collected.append(found.shortage.cause if found.shortage else None)
        disk.used = 500

    found.collect = collect
    await found.look()
    assert found.shortage is None
    assert collected == [None]
    disk.used = 2000
    found._clock.advance(1.0)
    await found.look()
    assert found.shortage is not None, "not again so soon"
    assert found.shortage.cause == DISK_BUDGET, "not again so soon"
    assert len(collected) == 1, "not again so soon"
    found._clock.advance(COLLECT_S)
    await found.look()
    assert found.shortage is None
    assert len(collected) == 2


@pytest.mark.anyio
async def test_it_pauses_and_goes_on_and_tells_the_metrics() -> None:
    disk = Scripted(free=200 * MIB)
    found = await guard(disk, reserve_bytes=100 * MIB)
    need = 0
    await found.attend(Path("/job"), lambda: need)
    assert found.shortage is None
    need = 101 * MIB
    await found.look()
    assert found.shortage is not None
    assert found.shortage.cause == DISK_FULL
    text = found._metrics.expose().decode()
    assert 'rftd_disk_short{cause="disk_full"} 1.0' in text
    assert f"rftd_disk_free_bytes {200 * MIB:.1f}"[:20] in text
    disk.free = 210 * MIB
    await found.look()
    assert found.shortage is not None, "a little more is not enough"
    disk.error = True
    await found.look()
    assert found.shortage is not None, "a disk that does not answer changes nothing"
    disk.error, disk.free = False, 226 * MIB
    await found.look()
    assert found.shortage is None
    assert 'rftd_disk_short{cause="disk_full"} 0.0' in found._metrics.expose().decode()


@pytest.mark.anyio
async def test_the_budget_counts_each_folder_once() -> None:
    disk = Scripted()
    found = await guard(disk, budget_bytes=1000)
    found.folders = lambda: [Path("/data/runs/a"), Path("/elsewhere/b")]
    await found.look()
    assert disk.counted == [DATA, Path("/elsewhere/b")]


def test_the_real_disk(tmp_path: Path) -> None:
    disk, deep = LocalDisk(), tmp_path / "not" / "there"
    volume = disk.volume(deep)
    assert 0 < volume.free_bytes <= volume.size_bytes
    assert disk.used_bytes([deep]) == 0
    before = disk.used_bytes([tmp_path])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * MIB)
    (tmp_path / "twice").hardlink_to(tmp_path / "a" / "file")
    (tmp_path / "link").symlink_to("/")
    grown = disk.used_bytes([tmp_path, tmp_path / "a"]) - before
    assert MIB <= grown < 2 * MIB
