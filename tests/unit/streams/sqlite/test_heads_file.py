"""The heads that the embedded log remembers beside its database: the newest whole slot, never a torn one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from rftd.streams.log.chain import Heads, Mark
from rftd.streams.log.topics import EVERY_PARTITION, Partition
from rftd.streams.sqlite.heads_file import FILE_NAME, HeadsFile, read_heads

A, B = Partition("rftd.experiments", 0), Partition("rftd.tasks", 3)
SLOT_SIZE_BYTES = 64 * 1024


def heads(offset: int) -> Heads:
    return {A: Mark(offset, offset.to_bytes(16, "big")), B: Mark(2 * offset, bytes(16))}


def written(path: Path, *offsets: int) -> Path:
    file = HeadsFile(path)
    for offset in offsets:
        file.write(heads(offset))
    file.close()
    return path


def test_no_file_and_an_empty_one_remember_nothing(tmp_path: Path) -> None:
    assert read_heads(tmp_path / FILE_NAME) == {}
    HeadsFile(tmp_path / FILE_NAME).close()
    assert read_heads(tmp_path / FILE_NAME) == {}
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0, "it is its owner's"


@pytest.mark.parametrize("count", range(1, 6))
def test_the_newest_is_remembered_however_often_it_was_written(tmp_path: Path, count: int) -> None:
    assert read_heads(written(tmp_path / FILE_NAME, *range(1, count + 1))) == heads(count)


def test_a_process_that_comes_later_goes_on_where_the_one_before_stopped(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    for offset in range(1, 8):
        assert read_heads(written(path, offset)) == heads(offset)
    assert path.stat().st_size <= 2 * SLOT_SIZE_BYTES


@pytest.mark.parametrize("count", [2, 3])
def test_a_torn_write_leaves_the_heads_before_it(tmp_path: Path, count: int) -> None:
    path = written(tmp_path / FILE_NAME, *range(1, count + 1))
    whole = path.read_bytes()
    start = count % 2 * SLOT_SIZE_BYTES
    size = 12 + int.from_bytes(whole[start + 8 : start + 12], "little")
    older = written(tmp_path / "older", *range(1, count)).read_bytes().ljust(2 * SLOT_SIZE_BYTES, b"\0")
    for kept in range(size):
        torn = whole[: start + kept] + older[start + kept : start + size] + whole[start + size :]
        path.write_bytes(torn)
        assert read_heads(path) == heads(count if torn == whole else count - 1), kept


def test_a_file_that_was_cut_off_remembers_what_is_left_of_it(tmp_path: Path) -> None:
    path = written(tmp_path / FILE_NAME, 1, 2)
    whole = path.read_bytes()
    for size, expected in ((len(whole), heads(2)), (SLOT_SIZE_BYTES, heads(2)), (40, {}), (11, {}), (0, {})):
        path.write_bytes(whole[:size])
        assert read_heads(path) == expected
    path.write_bytes(bytes(SLOT_SIZE_BYTES) + whole[SLOT_SIZE_BYTES:])
    assert read_heads(path) == heads(1)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_damage_is_taken_for_a_memory(tmp_path_factory: pytest.TempPathFactory, data: DataObject) -> None:
    path = written(tmp_path_factory.mktemp("heads") / FILE_NAME, 1, 2)
    damaged = bytearray(path.read_bytes())
    used = [*range(160), *range(SLOT_SIZE_BYTES, len(damaged))]
    for at in data.draw(st.lists(st.sampled_from(used), max_size=6)):
        damaged[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    assert read_heads(path) in (heads(1), heads(2), {})


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_at_all_remember_nothing(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("heads") / FILE_NAME
    path.write_bytes(content)
    assert read_heads(path) == {}
    assert read_heads(written(path, 5)) == heads(5), "and the file serves again"


def test_every_partition_that_there_is_has_room(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    everything = {partition: Mark((1 << 62) - 1, b"\xff" * 16) for partition in EVERY_PARTITION}
    file = HeadsFile(path)
    file.write(heads(1))
    file.write(everything)
    file.close()
    assert read_heads(path) == everything


def test_what_has_no_room_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    file = HeadsFile(path)
    file.write(heads(1))
    file.write({Partition("rftd.tasks", number): Mark(number, bytes(16)) for number in range(4000)})
    assert read_heads(path) == heads(1)
    file.write(heads(3))
    file.close()
    assert read_heads(path) == heads(3)


def test_a_write_that_fails_is_no_error_and_leaves_the_older_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILE_NAME
    file = HeadsFile(path)
    file.write(heads(1))

    def fail(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail)
        file.write(heads(2))
    assert read_heads(path) == heads(1)
    file.write(heads(3))
    file.close()
    assert read_heads(path) == heads(3)
