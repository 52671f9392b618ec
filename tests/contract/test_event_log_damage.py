"""The embedded log against damage and loss: what was acknowledged and is gone or different is refused by position."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from synthetic.log.scan_chain import scan_chain

from rftd.ops.errors import ConflictError, LogCorruptError, LogError, LogLossError
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Draft
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite import heads_file
from rftd.streams.sqlite.log import SqliteLog

pytestmark = pytest.mark.anyio

A = Partition("rftd.experiments", 0)


def draft(number: int, size: int = 1000) -> Draft:
    return Draft(A, UUID(int=number + 1), b"head-%d" % number, bytes([number % 251]) * size)


async def filled(folder: Path, count: int) -> Heads:
    """A closed log of `count` records; its heads."""
    log = await SqliteLog.open(folder)
    await log.append([draft(number) for number in range(count)])
    heads = await log.heads()
    await log.close()
    return heads


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << at % 8]))


async def test_a_flipped_byte_in_a_record_is_refused_with_its_position(tmp_path: Path) -> None:
    await filled(tmp_path, 100)
    path = tmp_path / "log.db"
    at = path.read_bytes().index(b"head-42" + bytes([42]) * 1000)
    flip(path, at + 500)
    with pytest.raises(LogCorruptError, match=r"rftd.experiments/0@42"):
        await SqliteLog.open(tmp_path)
    with pytest.raises(LogCorruptError, match=r"rftd.experiments/0@42"):
        scan_chain(tmp_path)


async def test_a_flipped_byte_older_than_the_verified_part_is_refused_by_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path, 100)
    path = tmp_path / "log.db"
    flip(path, path.read_bytes().index(b"head-42" + bytes([42]) * 1000) + 500)
    monkeypatch.setattr("rftd.streams.sqlite.check.verify_newest.__defaults__", (20_000,))
    log = await SqliteLog.open(tmp_path)
    assert len(await log.read(A, 0, max_records=42)) == 42
    with pytest.raises(LogCorruptError, match=r"rftd.experiments/0@42"):
        await log.read(A, 0)
    assert len(await log.read(A, 43)) == 57
    await log.close()


async def test_a_flipped_byte_anywhere_in_the_database_is_refused_or_harmless(tmp_path: Path) -> None:
    await filled(tmp_path / "good", 60)
    size = (tmp_path / "good" / "log.db").stat().st_size
    random = np.random.default_rng(3)
    refused = 0
    for at in sorted(int(place) for place in random.integers(0, size, 60)):
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        flip(tmp_path / "bad" / "log.db", at)
        try:
            scan_chain(tmp_path / "bad")
            log = await SqliteLog.open(tmp_path / "bad")
            try:
                assert (await log.append([draft(number) for number in range(60)]))[-1].offset == 59, at
                records = await log.read(A, 0)
                assert [record.head for record in records] == [b"head-%d" % number for number in range(60)], at
            finally:
                await log.close()
        except (LogError, ConflictError):
            refused += 1
        shutil.rmtree(tmp_path / "bad")
    assert refused >= 20  # the others hit free space


async def crashed(folder: Path) -> Heads:
    """A log as kill -9 leaves it, all of it in the write-ahead log: a copy of an open one. Its heads."""
    log = await SqliteLog.open(folder / "open")
    for number in range(50):
        await log.append([draft(number)])
    shutil.copytree(folder / "open", folder / "copy")
    heads = await log.heads()
    await log.close()
    return heads


async def test_a_damaged_write_ahead_log_is_refused_with_the_position(tmp_path: Path) -> None:
    heads = await crashed(tmp_path)
    wal = tmp_path / "copy" / "log.db-wal"
    flip(wal, wal.read_bytes().rindex(b"head-30" + bytes([30]) * 1000) + 10)
    with pytest.raises(LogLossError, match=r"rftd.experiments/0@49 was acknowledged and is gone"):
        await SqliteLog.open(tmp_path / "copy")
    (tmp_path / "copy" / heads_file.FILE_NAME).unlink()  # then only the clients remember
    log = await SqliteLog.open(tmp_path / "copy")
    with pytest.raises(LogLossError, match=r"rftd.experiments/0@49 was acknowledged and is gone"):
        await log.check_heads(heads)
    await log.close()


async def test_a_torn_write_ahead_log_opens_to_a_prefix(tmp_path: Path) -> None:
    await crashed(tmp_path)
    (tmp_path / "copy" / heads_file.FILE_NAME).unlink()
    size = (tmp_path / "copy" / "log.db-wal").stat().st_size
    lengths: list[int] = []
    for cut in sorted(int(place) for place in np.random.default_rng(5).integers(0, size, 25)):
        folder = tmp_path / "torn"
        shutil.copytree(tmp_path / "copy", folder)
        (folder / "log.db-shm").unlink()
        os.truncate(folder / "log.db-wal", cut)
        log = await SqliteLog.open(folder)
        records = await log.read(A, 0)
        assert [record.head for record in records] == [b"head-%d" % number for number in range(len(records))]
        lengths.append(len(records))
        assert (await log.append([draft(99)]))[0].offset == len(records)
        await log.close()
        shutil.rmtree(folder)
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0]


async def test_an_older_copy_of_the_database_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path, 10)
    backup = (tmp_path / "log.db").read_bytes()
    log = await SqliteLog.open(tmp_path)
    await log.append([draft(10)])
    await log.close()
    (tmp_path / "log.db").write_bytes(backup)
    with pytest.raises(LogLossError, match=r"rftd.experiments/0@10 was acknowledged and is gone"):
        await SqliteLog.open(tmp_path)


async def test_a_second_opener_is_told_who_has_it(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path)
    with pytest.raises(ConflictError, match=f"open in process {os.getpid()}") as error:
        await SqliteLog.open(tmp_path)
    assert "kill" in (error.value.fix or "")
    await log.close()
    await (await SqliteLog.open(tmp_path)).close()


async def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"not a database, and longer than a header of SQLite is" * 100)
    with pytest.raises(LogCorruptError, match=r"damaged|no event log"):
        await SqliteLog.open(tmp_path)
