"""A repeated id is recognised wherever it is kept: in memory or in the table."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import apsw
import pytest
from synthetic.log.scan_chain import scan_chain

from rftd.ops.errors import ConflictError, LogCorruptError
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite.log import SqliteLog, schema
from rftd.streams.sqlite.view import SqliteView

pytestmark = pytest.mark.anyio

A, B = Partition("rftd.experiments", 0), Partition("rftd.tasks", 3)


def draft(number: int) -> Draft:
    return Draft((A, B)[number % 2], UUID(int=number * 0x9E3779B97F4A7C15 % (1 << 128) + 1), b"h", b"%d" % number)


def indexed(folder: Path) -> tuple[int, dict[int, int]]:
    """How many ids are in the table, and up to which offset of each partition."""
    connection = schema.connect_reader(folder / schema.FILE_NAME)
    try:
        return int(str(connection.execute("SELECT count(*) FROM ids").get)), schema.indexed_ends(connection)
    finally:
        connection.close()


@pytest.mark.parametrize("at_once", [1, 7, 100, 10_000])
async def test_an_id_has_one_place_however_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(schema, "IDS_PER_INDEXING", at_once)
    chance = random.Random(at_once)
    log = await SqliteLog.open(tmp_path)
    places: dict[int, Position] = {}
    for _ in range(80):
        numbers = [chance.randrange(400) for _ in range(chance.randrange(1, 70))]
        found = await log.append([draft(number) for number in numbers])
        for number, place in zip(numbers, found, strict=True):
            assert places.setdefault(number, place) == place
        if chance.random() < 0.1:
            await log.close()
            log = await SqliteLog.open(tmp_path)
    assert len(set(places.values())) == len(places)
    heads = await log.heads()
    assert sum(mark.next_offset for mark in heads.values()) == len(places)
    await log.close()
    assert scan_chain(tmp_path).records == len(places)
    count, ends = indexed(tmp_path)
    assert count == sum(ends.values()), "a record's id is in the table exactly if it lies below the end"
    assert (count > 0) == (at_once < 400)


async def test_a_truncated_id_is_forgotten_in_memory_and_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "IDS_PER_INDEXING", 10)
    log = await SqliteLog.open(tmp_path)
    await log.append([draft(number) for number in range(0, 24, 2)])  # to the table, once they are acknowledged
    await log.append([draft(number) for number in range(24, 32, 2)])
    assert indexed(tmp_path) == (12, {1: 12})
    await log.truncate(A, 14)
    again = await log.append([draft(0), draft(26), draft(28)])
    assert [place.offset for place in again] == [16, 17, 14], "the first two are new, the third is where it was"
    await log.close()
    log = await SqliteLog.open(tmp_path)
    assert [place.offset for place in await log.append([draft(26), draft(30), draft(0)])] == [17, 15, 16]
    await log.close()
    assert scan_chain(tmp_path).records == 4


@pytest.mark.parametrize("version", [1, schema.SCHEMA_VERSION - 1, schema.SCHEMA_VERSION + 1])
async def test_a_log_of_another_version_is_refused_untouched(tmp_path: Path, version: int) -> None:
    log = await SqliteLog.open(tmp_path)
    await log.append([draft(1)])
    await log.close()
    file = tmp_path / schema.FILE_NAME
    connection = apsw.Connection(str(file))
    connection.pragma("user_version", version)
    connection.close()
    before = file.read_bytes()
    with pytest.raises(ConflictError, match=f"version {version}; this release reads version {schema.SCHEMA_VERSION}"):
        await SqliteLog.open(tmp_path)
    with pytest.raises(ConflictError, match=f"version {version}"):
        await SqliteView.open(tmp_path)
    assert file.read_bytes() == before


async def test_the_scan_names_an_id_that_is_missing_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "IDS_PER_INDEXING", 1)
    log = await SqliteLog.open(tmp_path)
    await log.append([draft(number) for number in range(10)])
    await log.close()
    connection = apsw.Connection(str(tmp_path / schema.FILE_NAME))
    connection.execute(schema.REMOVE_ID, (draft(4).id.bytes,))
    connection.close()
    with pytest.raises(LogCorruptError, match=r"rftd\.experiments/0@2 is not in the index of ids"):
        scan_chain(tmp_path)
