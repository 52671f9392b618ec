"""The reference of `experience_path`: a volatile buffer in one process, as an actor holds it. No log, no plan."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import msgspec

from rftd.streams.events.experience import ExperienceProduced

BATCH = 64
MOST = 4096
"""Experiences held before producers wait."""


class BareBuffer:
    """Takes groups, gives batches; the oldest first."""

    def __init__(self) -> None:
        self._held: deque[ExperienceProduced] = deque()
        self._changed = asyncio.Condition()
        self._decode = msgspec.msgpack.Decoder(list[ExperienceProduced]).decode
        self._encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
        self._closed = False
        self.written = 0
        self.read = 0

    async def serve(self, socket: Path) -> asyncio.Server:
        """Listens at the Unix socket."""
        return await asyncio.start_unix_server(self._connected, str(socket), limit=1 << 24)

    async def close(self) -> None:
        """Lets everybody go who waits."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while verb := await reader.read(1):
                if verb == b"w":
                    body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
                    await self._put(self._decode(body))
                    writer.write(b"a")
                else:
                    body = self._encode(await self._take())
                    writer.write(len(body).to_bytes(4, "little") + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _put(self, events: list[ExperienceProduced]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._held) < MOST or self._closed)
            self._held.extend(events)
            self.written += len(events)
            self._changed.notify_all()

    async def _take(self) -> list[ExperienceProduced]:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._held) >= BATCH or self._closed)
            self.read += BATCH
            self._changed.notify_all()
            return [self._held.popleft() for _ in range(min(BATCH, len(self._held)))]
