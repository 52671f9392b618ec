"""`AppendGate`: when clients of the log's socket may append: after the loss check, except for stopped experiments."""

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
from rftd.streams.log.lost_records import Witness

_CREDENTIALS: Final = struct.Struct("3i")
"""The kernel's answer about a peer: process, user and group."""


class AppendGate:
    """Permission to append: every append waits until `open`; drafts of stopped experiments are refused afterwards."""

    def __init__(self) -> None:
        """Begins closed."""
        self.listener: Callable[[Witness], Awaitable[None]] | None = None
        """Async callback for a client that remembers heads missing in the log; awaited before the client is
        answered.
        """
        self.witnesses: list[Witness] = []
        """Heads remembered by such clients, in the order of arrival."""
        self._barred: frozenset[UUID] = frozenset()
        self._opened = asyncio.Event()
        self._came: set[int] = set()
        self._coming = asyncio.Event()

    def open(self, barred: Collection[UUID] = ()) -> None:
        """Admits appends from now on, except for the experiments `barred`."""
        self._barred = frozenset(barred)
        self._opened.set()

    async def check(self, drafts: Iterable[Draft]) -> None:
        """Waits until these drafts may be appended. Raises LogLossError for drafts of a stopped experiment."""
        # A worker of the previous daemon reconnects within a second and may know of a loss unnoticed here: its own
        # appends, and all others, wait for its report.
        await self._opened.wait()
        for draft in drafts if self._barred else ():
            if _experiment_of(draft) in self._barred:
                raise LogLossError(
                    "this experiment is stopped: appends are refused until a person decides",
                    fix="run `rftd why`, or see the daemon's log, for the reason and the options",
                )

    def came(self, pid: int) -> None:
        """Records that process `pid` has connected and reported its remembered heads."""
        self._came.add(pid)
        self._coming.set()

    async def refused(self, pid: int, heads: Heads) -> None:
        """Records the heads remembered by process `pid`, at least one of them missing in the log, and awaits
        `listener`.
        """
        witness = Witness(f"process {pid}, which was connected before", heads)
        self.witnesses.append(witness)
        if self.listener is not None:
            await self.listener(witness)

    async def wait_for(self, pids: Collection[int], timeout_s: float) -> None:
        """Waits until these processes have reported their heads, at most `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._came.issuperset(pids):
                    self._coming.clear()
                    await self._coming.wait()
        except TimeoutError:
            return


def pid_of(transport: asyncio.BaseTransport) -> int:
    """Returns the process at the other end of a Unix socket; 0 if the system does not report it."""
    credentials = _credentials_of(transport)
    return 0 if credentials is None else credentials[0]


def user_of(transport: asyncio.BaseTransport) -> int | None:
    """Returns the user of the process at the other end of a Unix socket; None if the system does not report it."""
    credentials = _credentials_of(transport)
    return None if credentials is None else credentials[1]


def _credentials_of(transport: asyncio.BaseTransport) -> tuple[int, int, int] | None:
    """Returns process, user and group at the other end of a socket; None if the system does not tell."""
    end = transport.get_extra_info("socket")
    if end is None or not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, user, group = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user, group


def _experiment_of(draft: Draft) -> UUID | None:
    """Returns the experiment of a draft; None for an unreadable head, or one without an experiment."""
    try:
        return decode_head(Record(draft.partition, 0, b"", draft.head, b"")).experiment
    except CodecError:
        return None
