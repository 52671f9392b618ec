"""A TCP proxy whose network a test breaks: cut, delayed, half open, a black hole, healed.

It runs a loop in a thread of its own. Each control returns when it is in force, and holds for connections that exist
and for those to come, until `heal`. Bytes are held back, never lost from within a stream, as TCP does: after `heal` a
connection that survived goes on where it stood.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self, TypeVar

_CHUNK_BYTES: Final = 64 * 1024
_HELD_CHUNKS: Final = 16
_CONTROL_TIMEOUT_S: Final = 10.0
_RESET: Final = struct.pack("ii", 1, 0)

T = TypeVar("T")


class Direction:
    """One way through the proxy: does it flow, how late, and how much has passed?"""

    def __init__(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self.delay_s = 0.0
        self.passed_bytes = 0


class TcpProxy:
    """A proxy from `port` of loopback to a target port of loopback."""

    def __init__(self, target_port: int = 0) -> None:
        """Takes a free port at once; connections are answered once it is entered. `aim` may name the target later."""
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        """Connections so far."""
        self._requests, self._answers = Direction(), Direction()
        self._cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)

    @property
    def connections(self) -> int:
        """Clients connected now."""
        return self._call(lambda: len(self._open) // 2)

    @property
    def request_bytes(self) -> int:
        """Bytes delivered to the target."""
        return self._requests.passed_bytes

    @property
    def answer_bytes(self) -> int:
        """Bytes delivered to clients."""
        return self._answers.passed_bytes

    def aim(self, target_port: int) -> None:
        """Sends connections to come elsewhere."""
        self._target_port = target_port

    def cut(self) -> None:
        """Resets every connection (RST), and each new one until `heal`."""
        self._call(lambda: self._set(cut=True))

    def reset(self) -> None:
        """Resets every connection once; new ones pass."""
        self._call(self._reset_all)

    def delay(self, delay_s: float) -> None:
        """Each byte arrives `delay_s` later, in both directions; the throughput stays."""
        self._call(lambda: self._set(delay_s=delay_s))

    def half_open(self, *, requests: bool = True, answers: bool = False) -> None:
        """Only one direction flows. By default the target hears the clients, who get no answer: the outcome of what
        they asked for is unknown to them."""
        self._call(lambda: self._set(requests=requests, answers=answers))

    def black_hole(self) -> None:
        """Connections stand, new ones are accepted, and no byte passes in either direction."""
        self._call(lambda: self._set(requests=False, answers=False))

    def heal(self, *, reset: bool = False) -> None:
        """Everything flows again; with `reset` the connections that were there are reset first."""
        if reset:
            self.reset()
        self._call(self._set)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_CONTROL_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CONTROL_TIMEOUT_S)

    def _run(self) -> None:
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        self._reset_all()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, work: Callable[[], T]) -> T:
        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(_CONTROL_TIMEOUT_S)

    def _set(self, *, cut: bool = False, delay_s: float = 0.0, requests: bool = True, answers: bool = True) -> None:
        self._cut = cut
        for direction, flows in ((self._requests, requests), (self._answers, answers)):
            direction.delay_s = delay_s
            direction.flows.set() if flows else direction.flows.clear()
        if cut:
            self._reset_all()

    def _reset_all(self) -> None:
        for writer in list(self._open):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._cut:
            _reset(writer)
            return
        try:
            beyond, to_target = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            _reset(writer)
            return
        pair = {writer, to_target}
        self._open |= pair
        if self._cut:  # while it was being made
            self._reset_all()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_carry(reader, to_target, self._requests, group))
                group.create_task(_carry(beyond, writer, self._answers, group))
            for each in pair:
                each.close()  # both ways ended in order: a reset now could overtake the end, or bytes before it
                with suppress(OSError):
                    await each.wait_closed()
        except* OSError:
            pass  # one side is gone: so is the other, below
        finally:
            self._open -= pair
            for each in pair:
                _reset(each)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction, group: asyncio.TaskGroup
) -> None:
    """Bytes of one direction, until the end of the stream, which is passed on too."""
    loop = asyncio.get_running_loop()
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD_CHUNKS)

    async def deliver() -> None:
        while True:
            due_s, chunk = await held.get()
            if (left_s := due_s - loop.time()) > 0:
                await asyncio.sleep(left_s)
            await way.flows.wait()
            if not chunk:
                with suppress(OSError):
                    writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()
            way.passed_bytes += len(chunk)

    delivery = group.create_task(deliver())
    while not delivery.done():
        chunk = await reader.read(_CHUNK_BYTES)
        await held.put((loop.time() + way.delay_s, chunk))
        if not chunk:
            return


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST, not FIN."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
