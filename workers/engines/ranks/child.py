"""`RankChild`: the process of one rank as its trainer process sees it: of this machine, or of another one."""

from __future__ import annotations

import collections
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Final, Protocol

import msgspec
import psutil

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import RankError
from rftd.workers.engines.ranks.host import (
    HostNews,
    RankEnded,
    RankHello,
    RankStarted,
    RankWrote,
    SignalRank,
    rank_process,
)
from rftd.workers.engines.ranks.messages import Pipe
from rftd.workers.engines.ranks.nodes import RankHostPlace, RankNodes, watch_connection

END_S: Final = 5.0
"""The wait for a process that was told to end, or whose connection is closed."""
_LINES: Final = 12
"""Last lines of a rank that are told when it is lost."""
_LINE_CHARACTERS: Final = 300
_CONNECT_S: Final = 30.0


class RankChild(Protocol):
    """One process."""

    rank: int
    pipe: Pipe
    pid: int
    takes_files: bool
    """True if descriptors of files reach it."""
    where: str
    """Its process id and machine, in words."""

    def last_lines(self) -> str:
        """The end of what it wrote."""
        ...

    def ended(self) -> str:
        """The end of the rank, in words."""
        ...

    def state(self) -> str:
        """The state of its process, in a word."""
        ...

    def send_signal(self, number: signal.Signals) -> None:
        """Sends its process a signal, unless it has ended."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """True once its process has ended; False if it has not within the time, or nobody can say."""
        ...

    def close(self) -> None:
        """Ends the connections, after its process."""
        ...


class _Written:
    """What a rank writes: copied to standard error, which is the worker's log, and the last lines kept."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=_LINES)

    def take(self, line: str) -> None:
        """Takes a line in."""
        self._lines.append(line[:_LINE_CHARACTERS])
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def __str__(self) -> str:
        """The last lines, each on a line of its own."""
        return "".join(f"\n    {line}" for line in self._lines)


class LocalRank:
    """Implements `RankChild` on this machine."""

    takes_files = True

    def __init__(self, rank: int, ranks: int, *, timeout_s: float) -> None:
        """Starts it. `timeout_s` is the longest that sending may take. Raises OSError."""
        mine, theirs = socket.socketpair()
        _limit_sending(mine, timeout_s)
        with theirs:
            self._process = rank_process(theirs, rank, ranks)
        self.rank = rank
        self.pipe = Pipe(mine)
        self.pid = self._process.pid
        self.where = f"pid {self.pid}"
        self._written = _Written()
        self._reader = threading.Thread(target=self._copy, name=f"rank-{rank}-output", daemon=True)
        self._reader.start()

    def last_lines(self) -> str:
        self._reader.join(1.0)
        return str(self._written)

    def ended(self) -> str:
        try:
            return _ended(self._process.wait(END_S))
        except subprocess.TimeoutExpired:
            return "closed its connection"

    def state(self) -> str:
        try:
            return str(psutil.Process(self.pid).status())
        except psutil.Error:
            return "ended"

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.wait()
        self._reader.join(1.0)
        self.pipe.shut()

    def _copy(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._written.take(line.decode(errors="replace").rstrip("\n"))


class RemoteRank:
    """Implements `RankChild` on another machine, by the `RankHost` there."""

    takes_files = False

    def __init__(self, rank: int, ranks: int, host: RankHostPlace, *, crew: str, timeout_s: float) -> None:
        """Has it started. Raises RankError if it cannot be."""
        hello = RankHello(key=host.key, crew=crew, rank=rank, ranks=ranks, starts=False)
        self.rank = rank
        self._written = _Written()
        self._code: int | None = None
        self._over = threading.Event()
        opened: list[socket.socket] = []
        try:
            called = _connected(host, hello)
            opened.append(called)
            self._control = _connected(host, msgspec.structs.replace(hello, starts=True))
            opened.append(self._control)
            self._control.settimeout(_CONNECT_S)
            self._news = self._control.makefile("rb")
            began = json_decoder(RankStarted).decode(self._news.readline())
            self._control.settimeout(None)
        except (OSError, *UNREADABLE) as error:
            for connection in opened:
                connection.close()
            raise RankError(
                f"rank {rank} of {ranks} cannot be started on the node {host.address}: {error}",
                fix="nothing: the trainer is started again, on nodes that are there",
            ) from error
        _limit_sending(called, timeout_s)
        self.pipe = Pipe(called)
        self.pid = began.pid
        self.where = f"pid {self.pid} on {host.address}"
        threading.Thread(target=self._follow, name=f"rank-{rank}-output", daemon=True).start()

    def last_lines(self) -> str:
        self._over.wait(1.0)
        return str(self._written)

    def ended(self) -> str:
        self._over.wait(END_S)
        return "was lost with its node, or closed its connection" if self._code is None else _ended(self._code)

    def state(self) -> str:
        return "ended" if self._over.is_set() else "not ended"

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(OSError):
            self._control.sendall(msgspec.json.encode(SignalRank(signal=int(number))) + b"\n")

    def wait(self, timeout_s: float) -> bool:
        return self._over.wait(timeout_s)

    def close(self) -> None:
        # Its host ends it at the latest now.
        self._over.wait(END_S)
        for shut in (self.pipe.shut, lambda: self._control.shutdown(socket.SHUT_RDWR)):
            with suppress(OSError):
                shut()

    def _follow(self) -> None:
        with suppress(OSError, *UNREADABLE), self._news as lines:
            for line in lines:
                news: HostNews = json_decoder(HostNews).decode(line)  # type: ignore[arg-type]
                if isinstance(news, RankWrote):
                    self._written.take(news.text)
                elif isinstance(news, RankEnded):
                    self._code = news.code
        self._over.set()


def started(rank: int, ranks: int, nodes: RankNodes, *, crew: str, timeout_s: float) -> RankChild:
    """The process of a rank, on the node that it belongs to. Raises OSError, or RankError for that of another node."""
    machine = rank // nodes.local_ranks(ranks)
    if machine == 0:
        return LocalRank(rank, ranks, timeout_s=timeout_s)
    return RemoteRank(rank, ranks, nodes.hosts[machine - 1], crew=crew, timeout_s=timeout_s)


def _connected(host: RankHostPlace, hello: RankHello) -> socket.socket:
    connection = socket.create_connection((host.address, host.port), timeout=_CONNECT_S)
    connection.sendall(msgspec.json.encode(hello) + b"\n")
    connection.settimeout(None)
    watch_connection(connection)
    return connection


def _limit_sending(connection: socket.socket, timeout_s: float) -> None:
    # A rank that takes nothing, stopped or stuck, must not hold the caller up for ever.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout_s) + 1, 0))


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (", as the kernel does where memory is short" if name == "SIGKILL" else "")
