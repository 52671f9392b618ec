"""Small parts of the log's backends: room, tail, lock, heads file, frames."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rftd.ops import limits
from rftd.ops.errors import CodecError, ConflictError
from rftd.streams.log.admission import Room
from rftd.streams.log.chain import Mark
from rftd.streams.log.envelope import Record
from rftd.streams.log.tail import Tail
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite.heads_file import HeadsFile, read_heads
from rftd.streams.sqlite.lock_file import refuse_network_file_system
from rftd.streams.sqlite.socket.frames import PREFIX_BYTES, FrameReader, seal

A, B = Partition("rftd.experiments", 0), Partition("rftd.tasks", 1)


@pytest.mark.anyio
async def test_producers_wait_for_room_in_turn() -> None:
    room = Room(records=10, size_bytes=100)
    entered: list[int] = []

    async def enter(number: int, records: int) -> None:
        await room.reserve(records, 1)
        entered.append(number)

    await room.reserve(10, 1)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(enter(1, 8))
        second = group.create_task(enter(2, 4))
        third = group.create_task(enter(3, 1))
        await asyncio.sleep(0)
        room.release(6, 0)
        await asyncio.sleep(0)
        assert entered == []  # 8 do not fit beside 4
        first.cancel()
        await asyncio.sleep(0)
        await second
        await third
        assert entered == [2, 3]


@pytest.mark.anyio
async def test_anything_fits_into_an_empty_queue() -> None:
    room = Room(records=10, size_bytes=100)
    async with asyncio.timeout(5):
        await room.reserve(50, 5000)
        room.release(50, 5000)
        await room.reserve(1, 5000)


def test_the_ring_holds_the_newest_records_within_its_bytes() -> None:
    tail = Tail({}, ring_size_bytes=10 * (10 + 400))
    records = [Record(A, offset, bytes(16), bytes(5), bytes(5)) for offset in range(20)]
    tail.advance(records, {A: Mark(20, bytes(16))})
    assert tail.recent(A, 0, 5, 1000) is None
    assert tail.recent(A, 9, 5, 1000) is None
    assert tail.recent(A, 10, 5, 1000) == records[10:15]
    assert tail.recent(A, 10, 50, 35) == records[10:13]
    assert tail.recent(A, 10, 50, 1) == records[10:11]
    assert tail.recent(A, 20, 5, 1000) == []
    assert tail.recent(B, 0, 5, 1000) == []


def test_a_torn_slot_of_the_heads_file_leaves_the_other(tmp_path: Path) -> None:
    path = tmp_path / "heads"
    assert read_heads(path) == {}
    file = HeadsFile(path)
    for offset in (1, 2, 3):
        file.write({A: Mark(offset, bytes([offset]) * 16), B: Mark(9, bytes(16))})
    file.close()
    assert read_heads(path) == {A: Mark(3, bytes([3]) * 16), B: Mark(9, bytes(16))}
    content = bytearray(path.read_bytes())
    content[64 * 1024 + 20] ^= 1  # write 3 went to the second slot
    path.write_bytes(content)
    assert read_heads(path)[A] == Mark(2, bytes([2]) * 16)
    again = HeadsFile(path)
    again.write({A: Mark(4, bytes(16))})
    again.close()
    assert read_heads(path) == {A: Mark(4, bytes(16))}


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    local = "24 1 0:22 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    mounts.write_text(local)
    refuse_network_file_system(tmp_path, mounts)
    mounts.write_text(local + f"99 24 0:52 / {tmp_path} rw,relatime shared:2 - nfs4 host:/export rw\n")
    with pytest.raises(ConflictError, match="network file system \\(nfs4\\)"):
        refuse_network_file_system(tmp_path / "data", mounts)


def frame(body: bytes) -> bytes:
    whole = bytearray(PREFIX_BYTES) + body
    seal(whole)
    return bytes(whole)


def fed(reader: FrameReader, data: bytes) -> list[bytes]:
    """What a socket would get done that brings `data` in as many reads as there is room for."""
    bodies: list[bytes] = []
    while data:
        with reader.room() as room:
            size = min(len(room), len(data))
            room[:size] = data[:size]
        bodies += map(bytes, reader.filled(size))
        data = data[size:]
    return bodies


def test_frames_are_cut_however_the_bytes_arrive() -> None:
    bodies = [b"", b"a", b"b" * 1000, b"c" * 70_000, b"d" * 700_000, b"e" * 9_000_000, b"f", b"g" * 300_000] * 2
    stream = b"".join(map(frame, bodies))
    for step in (999, 262_144, 300_001, len(stream)):
        reader = FrameReader()
        found = [body for at in range(0, len(stream), step) for body in fed(reader, stream[at : at + step])]
        assert found == bodies
    short = b"".join(map(frame, bodies[:4]))
    for step in (1, 3):
        reader = FrameReader()
        assert [body for at in range(0, len(short), step) for body in fed(reader, short[at : at + step])] == bodies[:4]


def test_a_claimed_length_takes_no_memory_before_its_bytes_come() -> None:
    reader = FrameReader()
    assert fed(reader, limits.FRAME_SIZE_BYTES.to_bytes(4, "little")) == []
    assert len(reader.room()) < limits.MIB


def test_a_frame_over_the_limit_is_refused_by_its_length() -> None:
    with pytest.raises(CodecError, match="over the limit"):
        fed(FrameReader(), (limits.FRAME_SIZE_BYTES + 1).to_bytes(4, "little"))
