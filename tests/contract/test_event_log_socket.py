"""The log's socket: reconnecting, remembered heads, errors across the wire, foreign bytes."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import pytest

from rftd.ops.errors import (
    CodecError,
    ConflictError,
    LogFullError,
    LogLossError,
    UnreachableError,
    UsageError,
)
from rftd.streams.log.chain import Mark
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.log import EventLog
from rftd.streams.log.tail import TailSubscription
from rftd.streams.log.topics import Partition
from rftd.streams.memory import MemoryFaults, MemoryLog
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.socket import messages as wire
from rftd.streams.sqlite.socket.client import SocketLog
from rftd.streams.sqlite.socket.connection import Connection
from rftd.streams.sqlite.socket.server import LogServer

pytestmark = pytest.mark.anyio

A = Partition("rftd.experiments", 0)


def drafts(start: int, stop: int) -> list[Draft]:
    return [Draft(A, UUID(int=number + 1), b"head-%d" % number, b"value") for number in range(start, stop)]


@pytest.fixture
def path() -> Iterator[Path]:
    """A short place for a socket."""
    with TemporaryDirectory(prefix="rftd-") as runtime:
        yield Path(runtime) / "log.sock"


@asynccontextmanager
async def daemon(folder: Path, path: Path) -> AsyncIterator[SqliteLog]:
    log = await SqliteLog.open(folder)
    try:
        async with LogServer(log, path):
            yield log
    finally:
        await log.close()


async def test_a_client_outlives_a_restart_of_the_daemon(tmp_path: Path, path: Path) -> None:
    async with daemon(tmp_path, path):
        client = await SocketLog.connect(path)
        await client.append(drafts(0, 10))
        follower = client.subscribe({A: 5})
    async with asyncio.TaskGroup() as group:
        appending = group.create_task(client.append(drafts(8, 20)))
        following = group.create_task(follower.next(wait_s=20))
        reading = group.create_task(client.read(A, 0, max_records=3))
        await asyncio.sleep(0)
        async with daemon(tmp_path, path):
            assert await appending == [Position(A, offset) for offset in range(8, 20)]
            assert [record.offset for record in await following][:5] == [5, 6, 7, 8, 9]
            assert len(await reading) == 3
            await client.close()


async def test_a_client_gives_up_after_its_grace(tmp_path: Path, path: Path) -> None:
    async with daemon(tmp_path, path):
        client = await SocketLog.connect(path, grace_s=0.1)
    with pytest.raises(UnreachableError, match=r"away for 0\.1 s"):
        await client.append(drafts(0, 1))
    with pytest.raises(UnreachableError, match=r"away for 0\.1 s"):
        await client.read(A, 0)
    await client.close()
    with pytest.raises(UnreachableError, match="no daemon answers"):
        await SocketLog.connect(path, grace_s=0)


async def test_a_daemon_that_lost_acknowledged_records_is_refused(tmp_path: Path, path: Path) -> None:
    async with daemon(tmp_path / "old", path) as log:
        client = await SocketLog.connect(path)
        await client.append(drafts(0, 10))
        await log.append(drafts(10, 12))
    async with daemon(tmp_path / "old", path):
        assert len(await client.append(drafts(12, 13))) == 1  # intact: it goes on
    shutil.rmtree(tmp_path / "old")
    async with daemon(tmp_path / "new", path):
        for _ in range(2):
            with pytest.raises(LogLossError, match=r"rftd.experiments/0@12 was acknowledged and is gone"):
                await client.append(drafts(13, 14))
        with pytest.raises(LogLossError):
            await client.heads()
        fresh = await SocketLog.connect(path)
        assert await fresh.heads() == {}
        await fresh.close()
    await client.close()


async def test_unknown_outcomes_of_the_log_are_retried(path: Path) -> None:
    log = MemoryLog(MemoryFaults(seed=3, fail_p=0.2, unknown_p=0.3, duplicate_p=0.2, delay_p=0.5))
    async with LogServer(log, path):
        client = await SocketLog.connect(path)
        for start in range(0, 60, 3):
            assert await client.append(drafts(start, start + 3)) == [Position(A, start + n) for n in range(3)]
        assert [record.head for record in await client.read(A, 0)] == [b"head-%d" % n for n in range(60)]
        await client.close()


async def test_concurrent_appends_share_frames(tmp_path: Path, path: Path) -> None:
    async with daemon(tmp_path, path):
        client = await SocketLog.connect(path)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.append(drafts(start * 2, start * 2 + 2))) for start in range(200)]
        assert [task.result() for task in tasks] == [
            [Position(A, start * 2), Position(A, start * 2 + 1)] for start in range(200)
        ]
        await client.close()


class FullLog(MemoryLog):
    """A log without space."""

    async def append(self, drafts: object) -> list[Position]:
        raise LogFullError("no space", where="disk", fix="free some")


async def test_errors_cross_the_wire_with_class_code_and_fix(path: Path) -> None:
    async with LogServer(FullLog(), path):
        client = await SocketLog.connect(path)
        with pytest.raises(LogFullError) as error:
            await client.append(drafts(0, 1))
        assert (error.value.code, error.value.where, error.value.fix) == ("RFTD-LOG-004", "disk", "free some")
        with pytest.raises(LogLossError):
            await client.check_heads({A: Mark(3, bytes(16))})
        await client.close()


class WatchedLog(MemoryLog):
    """A log that tells when a subscription begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    def subscribe(self, positions: Mapping[Partition, int]) -> TailSubscription:
        self.begun.set()
        return WatchedSubscription(self, positions)


class WatchedSubscription(TailSubscription):
    def __init__(self, log: WatchedLog, positions: Mapping[Partition, int]) -> None:
        super().__init__(log, positions)
        self._ended = log.ended

    async def close(self) -> None:
        self._ended.set()
        await super().close()


async def test_a_cancelled_wait_ends_on_the_server(path: Path) -> None:
    log = WatchedLog()
    async with LogServer(log, path):
        client = await SocketLog.connect(path)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(client.subscribe({A: 0}).next(wait_s=1000))
            await log.begun.wait()
            waiting.cancel()
        async with asyncio.timeout(10):
            await log.ended.wait()
        await client.close()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "over the limit"),
        (b"\x08\0\0\0\xc1garbage", "unreadable request"),
        ((5001).to_bytes(4, "little") + b"\x91" * 5000 + b"\xc0", "unreadable request"),
        (bytes(wire.framed(wire.AskHeads(1))), "greeting"),
    ],
)
async def test_foreign_bytes_end_their_connection_only(path: Path, sent: bytes, expected: str) -> None:
    async with LogServer(MemoryLog(), path):
        client = await SocketLog.connect(path)
        reader, writer = await asyncio.open_unix_connection(os.fspath(path))
        writer.write(sent)
        reply = wire.decode_reply((await reader.read())[4:])
        assert isinstance(reply, wire.Failed)
        assert reply.id == 0
        assert isinstance(wire.error_of(reply), CodecError)
        assert expected in reply.what
        writer.close()
        assert await client.append(drafts(0, 1)) == [Position(A, 0)]
        await client.close()


async def test_append_beside_a_refused_greeting_writes_nothing(path: Path) -> None:
    log = MemoryLog()
    async with LogServer(log, path):
        reader, writer = await asyncio.open_unix_connection(os.fspath(path))
        lost = wire.to_wire({A: Mark(5, b"chain")})
        writer.writelines([wire.framed(wire.Hello(1, wire.PROTOCOL, lost)), wire.framed(wire.Append(2, drafts(0, 1)))])
        async with asyncio.timeout(60):
            await reader.read()
        writer.close()
    assert await log.read(A, 0) == []


async def test_another_release_is_refused(path: Path) -> None:
    async with LogServer(MemoryLog(), path):
        connection = await Connection.open(path)
        with pytest.raises(ConflictError, match="protocol 99"):
            await connection.request(lambda id: wire.Hello(id, 99, []), timeout_s=10)
        connection.hang_up()


async def test_the_socket_belongs_to_its_user_and_one_server(path: Path) -> None:
    log: EventLog = MemoryLog()
    async with LogServer(log, path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with pytest.raises(ConflictError, match="another process serves"):
            async with LogServer(log, path):
                pass
    assert os.listdir(path.parent) == []


async def test_a_dead_socket_is_replaced(path: Path) -> None:
    async with LogServer(MemoryLog(), path):
        os.link(path, path.with_name("dead"))
    path.with_name("dead").rename(path)
    async with LogServer(MemoryLog(), path):
        await (await SocketLog.connect(path)).close()


async def test_a_path_that_is_too_long_is_explained(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    with pytest.raises(UsageError, match="kernel allows"):
        await SocketLog.connect(long)
    with pytest.raises(UsageError, match="kernel allows"):
        async with LogServer(MemoryLog(), long):
            pass
