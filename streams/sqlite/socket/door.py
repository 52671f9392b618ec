"""`Door`: the permission to append through the log's socket, and the heads that returning clients remember."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final
from uuid import UUID

from rftd.ops.errors import CodecError, LogLossError
from rftd.streams.log.chain import Heads
from rftd.streams.log.codec import decode_head
from rftd.streams.log.envelope import Draft, Record
from rftd.streams.log.losses import Witness

_CREDENTIALS: Final = struct.Struct("3i")


class Door:
    """A gate for appends: closed until all survivors are heard, then closed to the experiments that are stopped."""

    def __init__(self) -> None:
        self.listener: Callable[[Witness], Awaitable[None]] | None = None
        """The callback for a client that remembers what the log does not hold; that client is answered after it."""
        self.witnesses: list[Witness] = []
        """The heads that such clients remembered, in the order in which they came."""
        self._barred: frozenset[UUID] = frozenset()
        self._opened = asyncio.Event()
        self._came: set[int] = set()
        self._coming = asyncio.Event()

    def open(self, barred: Collection[UUID] = ()) -> None:
        """Lets appends pass from now on, but for those of the experiments that are `barred`."""
        self._barred = frozenset(barred)
        self._opened.set()

    async def check(self, drafts: Iterable[Draft]) -> None:
        """Returns once these may be appended. Raises LogLossError if they are of an experiment that is stopped."""
        # A worker of the daemon before this one reconnects within a second and may know of a loss that nobody here has
        # noticed: its own appends, and all others, wait until it was heard.
        await self._opened.wait()
        for draft in drafts if self._barred else ():
            if _experiment_of(draft) in self._barred:
                raise LogLossError(
                    "this experiment is stopped: nothing is appended to it until a person has decided",
                    fix="ask `rftd why`, or see the daemon's log, for the reason and the choice",
                )

    def came(self, pid: int) -> None:
        """Takes in that a process was heard."""
        self._came.add(pid)
        self._coming.set()

    async def refused(self, pid: int, heads: Heads) -> None:
        """Takes in what a process remembers and the log does not hold."""
        witness = Witness(f"process {pid}, which was connected before", heads)
        self.witnesses.append(witness)
        if self.listener is not None:
            await self.listener(witness)

    async def wait_for(self, pids: Collection[int], timeout_s: float) -> None:
        """Returns once these processes were heard, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._came.issuperset(pids):
                    self._coming.clear()
                    await self._coming.wait()
        except TimeoutError:
            return


def pid_of(transport: asyncio.BaseTransport) -> int:
    """The process at the other end of a Unix socket; 0 where the system does not say."""
    credentials = _credentials_of(transport)
    return 0 if credentials is None else credentials[0]


def user_of(transport: asyncio.BaseTransport) -> int | None:
    """The user whose process is at the other end of a Unix socket; None where the system does not say."""
    credentials = _credentials_of(transport)
    return None if credentials is None else credentials[1]


def _credentials_of(transport: asyncio.BaseTransport) -> tuple[int, int, int] | None:
    end = transport.get_extra_info("socket")
    if end is None or not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, user, group = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user, group


def _experiment_of(draft: Draft) -> UUID | None:
    try:
        return decode_head(Record(draft.partition, 0, b"", draft.head, b"")).experiment
    except CodecError:
        return None
