"""`LogServer`: an `EventLog` for other processes. `async with LogServer(log, path): ...`"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

from rftd.ops import limits
from rftd.ops.cycles import release
from rftd.ops.decoding import UNREADABLE
from rftd.ops.errors import CodecError, ConflictError, LogError, LogLossError, RftdError
from rftd.streams.log.admission import admit
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Record
from rftd.streams.log.log import EventLog
from rftd.streams.sqlite.socket import messages as wire
from rftd.streams.sqlite.socket.address import listen
from rftd.streams.sqlite.socket.append_gate import AppendGate, pid_of
from rftd.streams.sqlite.socket.frames import FrameReader

REQUESTS_PER_CONNECTION: Final = 256
"""Number of unanswered requests of one client at which the server stops reading from its socket."""
LONGEST_WAIT_S: Final = 30.0
"""Maximum seconds of a long poll; the empty answer also tells the client that the server is alive."""
LARGEST_READ_SIZE_BYTES: Final = limits.FRAME_SIZE_BYTES // 4
"""Maximum payload of one answer, leaving room in the frame for a record's head, offset and chain."""


class LogServer:
    """Serves a log to other processes of the same user, at the Unix socket `path` (mode 0600).

    Clients receive `file`, the log's own path, and read it directly: 50 MB/s of experiences need not pass through here.
    """

    def __init__(self, log: EventLog, path: Path, *, file: Path | None = None, door: AppendGate | None = None) -> None:
        """`door` decides when clients may append; without it, they may at once."""
        self.log = log
        self.door = door
        self.path = path
        self.file = "" if file is None else str(file)
        self.tasks = asyncio.TaskGroup()
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Begins to listen."""
        listening = listen(self.path)
        await self.tasks.__aenter__()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=listening)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes the socket and ends every connection."""
        assert self._server is not None
        self._server.close()
        # Before the connections end: a disconnected client must find no server here, rather than one about to close.
        self.path.unlink(missing_ok=True)
        for connection in list(self.connections):
            connection.hang_up()
        await self.tasks.__aexit__(kind, error, trace)


class _Connection(asyncio.BufferedProtocol):
    """One client: each request is a task, answered on completion, in any order."""

    def __init__(self, server: LogServer) -> None:
        """Begins without a transport."""
        self._server = server
        self._log = server.log
        self._frames = FrameReader()
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._transport: asyncio.Transport | None = None
        self._congested = False
        self._greeted = False
        """True once the client's heads were compared with the log's."""
        self._door = server.door
        self._pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, no check: transports of other event loops, such as uvloop's, are not of asyncio's classes.
        """Accepts a client; one too many is refused."""
        self._transport = cast(asyncio.Transport, transport)
        self._pid = pid_of(transport)
        if len(self._server.connections) >= limits.LOG_CONNECTIONS:
            self._refuse(ConflictError(f"the log has {limits.LOG_CONNECTIONS} clients already", fix="stop some"))
            return
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the requests under way."""
        release(self._transport)
        self._transport = None
        self._server.connections.discard(self)
        # Cancelling an append does not undo it: the append may still commit, and its client asks again with the same
        # ids.
        for task in self._under_way.values():
            task.cancel()

    def hang_up(self) -> None:
        """Closes the connection, and cancels unanswered requests, so that the client cannot know their outcome."""
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the memory for the next bytes."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Begins the requests completed by the received bytes; an unreadable one ends the connection."""
        try:
            for body in self._frames.filled(nbytes):
                self._begin(wire.decode_request(body))
        except (CodecError, *UNREADABLE) as error:
            self._refuse(error if isinstance(error, CodecError) else CodecError(f"unreadable request: {error}"))

    def pause_writing(self) -> None:
        """Notes that the client does not read fast enough."""
        self._congested = True
        self._regulate()

    def resume_writing(self) -> None:
        """Notes that the client reads again."""
        self._congested = False
        self._regulate()

    def _begin(self, request: wire.Request) -> None:
        """Starts the task of a request; a `Cancel` ends another request's task. Raises CodecError for a request before
        the greeting, or with the id of one under way.
        """
        if isinstance(request, wire.Cancel):
            if task := self._under_way.get(request.id):
                task.cancel()
            return
        # Without a greeting no heads were compared, and an append could continue a log that lost its end.
        if not self._greeted and not isinstance(request, wire.Hello):
            raise CodecError("the first request must be a greeting")
        if request.id in self._under_way:
            raise CodecError(f"request {request.id} is under way already")
        self._under_way[request.id] = self._server.tasks.create_task(self._answer(request))
        self._regulate()

    async def _answer(self, request: wire.Request) -> None:
        """Executes a request and sends its reply or its error."""
        try:
            reply = await self._reply(request)
        except RftdError as error:
            reply = wire.failed(request.id, error)
        except Exception as error:  # a bug in the server must not take every other client with it
            reply = wire.failed(request.id, LogError(f"the log's server failed: {type(error).__name__}: {error}"))
        finally:
            del self._under_way[request.id]
            self._regulate()
        if self._transport is not None:
            self._transport.write(wire.framed(reply))

    async def _reply(self, request: wire.Request) -> wire.Reply:
        """Executes a request, by its type."""
        log = self._log
        match request:
            case wire.Append():
                admit(request.drafts)
                if self._door is not None:
                    await self._door.check(request.drafts)
                positions = await log.append(request.drafts)
                # After the append: the heads cover it, and may cover records of other clients, equally durable.
                heads = await log.heads()
                touched = {position.partition for position in positions}
                return wire.Appended(request.id, positions, [(partition, heads[partition]) for partition in touched])
            case wire.Fetch():
                return wire.Records(request.id, await self._fetch(request))
            case wire.ReadFrom():
                size = min(request.max_size_bytes, LARGEST_READ_SIZE_BYTES)
                records = min(request.max_records, limits.APPEND_RECORDS)
                read_records = await log.read(
                    request.partition, request.start, max_records=records, max_size_bytes=size
                )
                return wire.Records(request.id, read_records)
            case wire.AskHeads():
                return wire.HeadsAre(request.id, wire.to_wire(await log.heads()))
            case wire.CheckHeads():
                await log.check_heads(dict(request.heads))
            case wire.Truncate():
                await log.truncate(request.partition, request.before_offset)
            case wire.Hello():
                if request.protocol != wire.PROTOCOL:
                    raise ConflictError(
                        f"the client speaks protocol {request.protocol} of the log's socket, we {wire.PROTOCOL}",
                        fix="run daemon and workers of the same release",
                    )
                await self._hear(dict(request.heads))
                self._greeted = True
                return wire.Welcome(request.id, self._server.file)
            case wire.Cancel():
                raise AssertionError("not a request with a reply")
        return wire.DoneReply(request.id)

    async def _hear(self, heads: Heads) -> None:
        """Raises LogLossError if the client remembers heads missing in the log, after informing the gate."""
        try:
            await self._log.check_heads(heads)
        except LogLossError:
            # First the door, then the answer: by the time of the client's answer, its experiments are stopped.
            if self._door is not None:
                await self._door.refused(self._pid, heads)
            raise
        finally:
            if self._door is not None:
                self._door.came(self._pid)

    async def _fetch(self, request: wire.Fetch) -> list[Record]:
        """Waits for records of several partitions; see `messages.Fetch`."""
        subscription = self._log.subscribe(dict(request.positions))
        try:
            wait_s = min(request.wait_s, LONGEST_WAIT_S)
            return await subscription.next(wait_s=wait_s, max_records=min(request.max_records, limits.APPEND_RECORDS))
        finally:
            await subscription.close()

    def _regulate(self) -> None:
        """Stops and resumes reading from the socket, depending on the room for requests and answers."""
        if self._transport is None or self._transport.is_closing():
            return
        with suppress(RuntimeError):  # already paused, or already reading
            if self._congested or len(self._under_way) >= REQUESTS_PER_CONNECTION:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _refuse(self, error: RftdError) -> None:
        """Sends an error as the answer to no request, and hangs up."""
        if self._transport is not None:
            self._transport.write(wire.framed(wire.failed(0, error)))
            self._transport.close()
