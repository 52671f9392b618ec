"""`SocketLog`: an `EventLog` over the daemon's socket with reconnects, retries and remembered heads; `unix:` URLs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import LogCorruptError, RftdError, UnreachableError
from rftd.ops.ids import Ids
from rftd.streams.log.admission import QueuedAppend, Room, append_in_parts
from rftd.streams.log.backend import LogBackend, LogUrl
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite.gil_yield import GilYield
from rftd.streams.sqlite.reader import ReaderThreads
from rftd.streams.sqlite.socket import messages as wire
from rftd.streams.sqlite.socket.address import check_path
from rftd.streams.sqlite.socket.connection import Connection
from rftd.streams.sqlite.socket.server import LONGEST_WAIT_S

RETRY_INTERVAL_S: Final = 0.05
"""Pause in seconds between two tries to reach an absent daemon; a restart takes a second or more."""
ANSWER_TIMEOUT_S: Final = 30.0
"""Seconds without a reply after which a connected daemon counts as dead."""

T = TypeVar("T")
"""Result of a call to the daemon."""


class SocketBackend(LogBackend):
    """The log backend of URLs `unix:PATH`: the embedded log of the daemon listening at that path."""

    name = "a daemon's socket"
    """Name of the backend in texts."""
    form = "unix:PATH"
    """Form of the backend's URLs."""
    serves = False
    chained = True

    def checked(self, text: str) -> LogUrl:
        """Parses `unix:PATH`; see `LogBackend.checked`."""
        return LogUrl("unix", text)

    def place(self, url: LogUrl) -> str:
        """Returns the socket's path; see `LogBackend.place`."""
        return f"the socket {_path_of(url)}"

    async def open(self, url: LogUrl, *, clock: Clock, ids: Ids) -> SocketLog:
        """Connects to the daemon; see `LogBackend.open`."""
        return await SocketLog.connect(_path_of(url))


def _path_of(url: LogUrl) -> Path:
    """Returns the path of the socket."""
    return Path(url.text.partition(":")[2])


class SocketLog:
    """The log behind a Unix socket; created by `connect`. Many coroutines share it.

    While the daemon is away, each call retries for `grace_s` seconds, appends with the same drafts, and then raises
    UnreachableError. A returning daemon must still have every record acknowledged to this client, or each call raises
    LogLossError. `read` uses the log's file if the daemon names one readable by this process.
    """

    def __init__(self, path: Path, grace_s: float) -> None:
        """Creates the log without a connection; `connect` checks that the daemon answers."""
        self._path = path
        self._grace_s = grace_s
        self._connection: Connection | None = None
        self._file: ReaderThreads | None = None
        self._readable = True
        self._connecting = asyncio.Lock()
        self._remembered: Heads = {}
        self._room = Room(limits.APPEND_QUEUE_RECORDS, limits.APPEND_QUEUE_SIZE_BYTES)
        self._queue: list[QueuedAppend] = []
        """Appends waiting to be sent together in one frame."""
        self._under_way = 0
        self._idle = asyncio.Event()
        self._closed = False

    @classmethod
    async def connect(cls, path: Path, *, grace_s: float = limits.ORPHAN_GRACE_S) -> Self:
        """Connects to the daemon at `path`, waiting up to `grace_s` seconds. Raises UnreachableError."""
        check_path(path)
        log = cls(path, grace_s)
        await log.heads()
        return log

    @property
    def failure(self) -> RftdError | None:
        """None: the daemon's own log reports failing appends."""
        return None

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Appends drafts through the daemon, and returns their positions; see `EventLog.append`."""
        self._check_open()
        return await append_in_parts(drafts, self._append)

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        """Reads records of a partition, from the log's file if possible; see `EventLog.read`."""
        if self._file is not None and self._readable:
            self._check_open()
            try:
                # `end` 0: this process does not know the head, so a short answer is no damage.
                return await self._file.read(partition, start, 0, max_records, max_size_bytes)
            except LogCorruptError:
                raise
            except RftdError:  # the daemon may still be able to read
                self._readable = False
        reply = await self._ask(lambda id: wire.ReadFrom(id, partition, start, max_records, max_size_bytes))
        assert isinstance(reply, wire.Records)
        return reply.records

    async def fetch(
        self, positions: Mapping[Partition, int], *, wait_s: float, max_records: int = limits.FETCH_RECORDS
    ) -> list[Record]:
        """Returns records at or above `positions`, those of the first partitions first; empty if none arrived within
        `wait_s`.
        """
        offsets = list(positions.items())
        reply = await self._ask(lambda id: wire.Fetch(id, offsets, wait_s, max_records), wait_s=wait_s)
        assert isinstance(reply, wire.Records)
        return reply.records

    def subscribe(self, positions: Mapping[Partition, int]) -> SocketSubscription:
        """Returns a subscription from these offsets on; see `EventLog.subscribe`."""
        self._check_open()
        return SocketSubscription(self, positions)

    async def heads(self) -> Heads:
        """Returns the present heads of all partitions, from the daemon."""
        reply = await self._ask(wire.AskHeads)
        assert isinstance(reply, wire.HeadsAre)
        return dict(reply.heads)

    async def check_heads(self, remembered: Heads) -> None:
        """Raises LogLossError unless the log has every remembered head; see `EventLog.check_heads`."""
        await self._ask(lambda id: wire.CheckHeads(id, wire.to_wire(remembered)))

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        """Deletes the records of a partition below an offset; see `EventLog.truncate`."""
        await self._ask(lambda id: wire.Truncate(id, partition, before_offset))

    async def close(self) -> None:
        """Waits for appends under way, then closes the connection and the log's file; see `EventLog.close`."""
        self._closed = True  # before the wait: no new append joins, and appends under way still retry
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()
        if self._connection is not None:
            self._connection.hang_up()
        if self._file is not None:
            await asyncio.to_thread(self._file.close)

    async def _append(self, drafts: Sequence[Draft], size_bytes: int) -> list[Position]:
        """Appends drafts, once there is room in the queue, with retries while the daemon is away."""
        self._under_way += 1
        try:
            await self._room.reserve(len(drafts), size_bytes)
            try:
                return await self._retry(lambda connection: self._append_once(connection, drafts, size_bytes))
            finally:
                self._room.release(len(drafts), size_bytes)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _append_once(self, connection: Connection, drafts: Sequence[Draft], size_bytes: int) -> list[Position]:
        """Queues drafts for the next request on a connection, and waits for their positions."""
        loop = asyncio.get_running_loop()
        acknowledged: asyncio.Future[list[Position]] = loop.create_future()
        self._queue.append(QueuedAppend(drafts, size_bytes, acknowledged))
        if len(self._queue) == 1:
            loop.call_soon(self._flush)  # after the other producers woken in this turn of the loop
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await acknowledged
        except TimeoutError as error:
            raise connection.unanswered(ANSWER_TIMEOUT_S) from error

    def _flush(self) -> None:
        """Sends the queued appends, several in one request: a frame costs more than a record."""
        connection = self._connection
        if connection is not None and not connection.lost and not connection.when_writable(self._flush):
            return
        queue = self._queue
        self._queue = []
        group: list[QueuedAppend] = []
        records = size = 0
        for append in queue:
            if group and (
                records + len(append.drafts) > limits.APPEND_RECORDS
                or size + append.size_bytes > limits.APPENDS_SIZE_BYTES
            ):
                self._send(connection, group)
                group = []
                records = 0
                size = 0
            group.append(append)
            records += len(append.drafts)
            size += append.size_bytes
        if group:
            self._send(connection, group)

    def _send(self, connection: Connection | None, group: list[QueuedAppend]) -> None:
        """Sends a group of appends as one request; without a connection, fails them."""
        drafts = [draft for append in group for draft in append.drafts]
        try:
            if connection is None:
                raise UnreachableError("the connection to the daemon was lost", fix="retry the same drafts")
            reply = connection.submit(lambda id: wire.Append(id, drafts))
        except RftdError as error:
            _fail(group, error)
        else:
            reply.add_done_callback(lambda done: self._acknowledge(group, done))

    def _acknowledge(self, group: list[QueuedAppend], done: asyncio.Future[wire.Reply]) -> None:
        """Gives each append of a group its positions, or the error."""
        error = done.exception()
        if error is not None:
            _fail(group, error)
            return
        reply = done.result()
        if isinstance(reply, wire.Failed):
            _fail(group, wire.error_of(reply))
            return
        assert isinstance(reply, wire.Appended)
        # Before the producers are woken: acknowledged positions are in the next greeting. Replies may overtake each
        # other, so a head only grows.
        for partition, mark in reply.heads:
            remembered = self._remembered.get(partition)
            if remembered is None or mark.next_offset > remembered.next_offset:
                self._remembered[partition] = mark
        start = 0
        for append in group:
            end = start + len(append.drafts)
            if not append.acknowledged.done():
                append.acknowledged.set_result(reply.positions[start:end])
            start = end

    async def _ask(self, make: wire.Make, wait_s: float = 0.0) -> wire.Reply:
        """Sends a request and returns the reply, with retries while the daemon is away."""
        return await self._retry(lambda connection: connection.request(make, ANSWER_TIMEOUT_S + wait_s))

    async def _retry(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        """Returns the result of `call` on a live connection; retries for `grace_s` seconds while the daemon is away."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            self._check_open(under_way=True)
            # An append may have landed without a reply: the same drafts are sent again, and the log knows their ids.
            try:
                return await call(await self._connected())
            except UnreachableError as error:
                if deadline is None:  # from the first failure on: a long poll begun earlier must not use it up
                    deadline = loop.time() + self._grace_s
                if loop.time() >= deadline:
                    raise UnreachableError(
                        f"the daemon has been away for {self._grace_s:g} s: {error.what}",
                        where=str(self._path),
                        fix="start it with `rftd serve`; then retry the same drafts",
                    ) from error
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def _connected(self) -> Connection:
        """Returns a connection whose server has confirmed the heads remembered by this client."""
        if self._connection is not None and not self._connection.lost:
            return self._connection
        async with (
            self._connecting
        ):  # all callers fail together: the first one connects, the others find the connection
            if self._connection is None or self._connection.lost:
                connection = await Connection.open(self._path)
                remembered = wire.to_wire(self._remembered)
                try:
                    reply = await connection.request(
                        lambda id: wire.Hello(id, wire.PROTOCOL, remembered), ANSWER_TIMEOUT_S
                    )
                except BaseException:
                    connection.hang_up()
                    raise
                assert isinstance(reply, wire.Welcome)
                if reply.file and self._file is None:
                    self._file = ReaderThreads(Path(reply.file), GilYield(), threads=1)
                # Only now: nothing is sent to a daemon before it confirmed its earlier acknowledgements.
                self._connection = connection
            return self._connection

    def _check_open(self, *, under_way: bool = False) -> None:
        """Raises UnreachableError if the log is closed; with `under_way`, only once no append is under way any more."""
        if self._closed and not (under_way and self._under_way):
            raise UnreachableError("the log is closed", where=str(self._path), fix="connect again")


def _fail(group: list[QueuedAppend], error: BaseException) -> None:
    """Ends the appends of a group with an error."""
    for append in group:
        if not append.acknowledged.done():
            if isinstance(error, RftdError):  # one instance per caller: a traceback grows with each raise
                append.acknowledged.set_exception(
                    type(error)(error.what, where=error.where, field=error.field, fix=error.fix)
                )
            else:
                append.acknowledged.set_exception(error)


class SocketSubscription:
    """A `Subscription` of long polls; the server keeps no state between them, so it survives a new connection."""

    def __init__(self, log: SocketLog, positions: Mapping[Partition, int]) -> None:
        """Begins at `positions`, the next offset of each partition."""
        self._log = log
        self._positions = dict(positions)

    @property
    def positions(self) -> Mapping[Partition, int]:
        """Next offset to be returned, by partition."""
        return dict(self._positions)

    async def next(self, *, wait_s: float, max_records: int = limits.FETCH_RECORDS) -> list[Record]:
        """Returns the next records, waiting at most `wait_s` seconds; see `Subscription.next`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            remaining_s = max(0.0, deadline - loop.time())
            records = await self._log.fetch(
                self._positions, wait_s=min(remaining_s, LONGEST_WAIT_S), max_records=max_records
            )
            for record in records:
                # The partition moves behind the others: the partition served last is no longer served first.
                self._positions.pop(record.partition, None)
                self._positions[record.partition] = record.offset + 1
            if records or loop.time() >= deadline:
                return records

    async def close(self) -> None:
        """Ends the subscription."""
        return
