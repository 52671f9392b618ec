"""`RankChild`: the process of one rank, on this machine or another, as seen by its trainer process."""

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
"""Seconds to wait for a process after the request to end, or after its connection closed."""
_LINES: Final = 12
"""Number of a lost rank's last lines in the error."""
_LINE_CHARACTERS: Final = 300
"""Maximum length of a stored line of output."""
_CONNECT_S: Final = 30.0
"""Time-out in seconds for connecting to a host of ranks."""


class RankChild(Protocol):
    """The process of one rank as seen by the trainer process: a pipe for calls, and controls for signals and output."""

    rank: int
    """Number of the rank."""
    pipe: Pipe
    """Connection for calls and answers."""
    pid: int
    """Process id on the rank's machine."""
    takes_files: bool
    """True if open files can be sent to the process: it runs on this machine."""
    where: str
    """Process id of the rank as text, with the machine if not the trainer's own."""

    def last_lines(self) -> str:
        """Returns the last lines of the rank's output, for the error of a lost rank."""
        ...

    def ended(self) -> str:
        """Describes how the rank ended: exit code, signal, or lost connection."""
        ...

    def state(self) -> str:
        """Returns the process's state in a word or two, such as `sleeping` or `ended`."""
        ...

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process, unless it has ended."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Waits at most `timeout_s`; True if the process has ended by then."""
        ...

    def close(self) -> None:
        """Closes the connections to the rank, whose process must have been told to end."""
        ...


class _RankOutput:
    """Output of a rank: copied to standard error (the worker's log), with the last lines stored."""

    def __init__(self) -> None:
        """Begins without lines."""
        self._lines: collections.deque[str] = collections.deque(maxlen=_LINES)

    def take(self, line: str) -> None:
        """Copies and remembers one line."""
        self._lines.append(line[:_LINE_CHARACTERS])
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def __str__(self) -> str:
        """Returns the last lines, each on a separate line."""
        return "".join(f"\n    {line}" for line in self._lines)


class LocalRank:
    """Implements `RankChild` for a process on this machine."""

    takes_files = True
    """True: calls to ranks on this machine may carry open files."""

    def __init__(self, rank: int, ranks: int, *, timeout_s: float) -> None:
        """Starts the process. A message that cannot be sent within `timeout_s` raises OSError later. Raises OSError."""
        mine, theirs = socket.socketpair()
        _limit_sending(mine, timeout_s)
        with theirs:
            self._process = rank_process(theirs, rank, ranks)
        self.rank = rank
        self.pipe = Pipe(mine)
        self.pid = self._process.pid
        self.where = f"pid {self.pid}"
        self._output = _RankOutput()
        self._reader = threading.Thread(target=self._copy_output, name=f"rank-{rank}-output", daemon=True)
        self._reader.start()

    def last_lines(self) -> str:
        """Returns the last lines of output, for a message."""
        self._reader.join(1.0)
        return str(self._output)

    def ended(self) -> str:
        """Returns how the process ended, as a clause of a message."""
        try:
            return _end_clause(self._process.wait(END_S))
        except subprocess.TimeoutExpired:
            return "closed its connection"

    def state(self) -> str:
        """Returns the process's state in a word."""
        try:
            return str(psutil.Process(self.pid).status())
        except psutil.Error:
            return "ended"

    def send_signal(self, number: signal.Signals) -> None:
        """Signals the process, unless it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Waits for the process's end; returns False after the time-out."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.poll() is not None

    def close(self) -> None:
        """Waits for the process's end, and closes the connection."""
        self._process.wait()
        self._reader.join(1.0)
        self.pipe.shut()

    def _copy_output(self) -> None:
        """Stores and passes on the process's output, line by line."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._output.take(line.decode(errors="replace").rstrip("\n"))


class RemoteRank:
    """Implements `RankChild` for a process on another machine, through the `RankHost` there."""

    takes_files = False
    """False: calls to another machine cannot carry open files."""

    def __init__(self, rank: int, ranks: int, host: RankHostPlace, *, crew: str, timeout_s: float) -> None:
        """Starts the process through the host; `crew` is the random id of the trainer's set of ranks. Raises RankError
        if the start fails.
        """
        hello = RankHello(key=host.key, crew=crew, rank=rank, ranks=ranks, starts=False)
        self.rank = rank
        self._output = _RankOutput()
        self._code: int | None = None
        self._has_ended = threading.Event()
        opened: list[socket.socket] = []
        try:
            call_connection = _connect(host, hello)
            opened.append(call_connection)
            self._control = _connect(host, msgspec.structs.replace(hello, starts=True))
            opened.append(self._control)
            self._control.settimeout(_CONNECT_S)
            self._news = self._control.makefile("rb")
            started_news = json_decoder(RankStarted).decode(self._news.readline())
            self._control.settimeout(None)
        except (OSError, *UNREADABLE) as error:
            for connection in opened:
                connection.close()
            raise RankError(
                f"rank {rank} of {ranks} cannot be started on the node {host.address}: {error}",
                fix="nothing: the trainer restarts on the nodes still available",
            ) from error
        _limit_sending(call_connection, timeout_s)
        self.pipe = Pipe(call_connection)
        self.pid = started_news.pid
        self.where = f"pid {self.pid} on {host.address}"
        threading.Thread(target=self._follow, name=f"rank-{rank}-output", daemon=True).start()

    def last_lines(self) -> str:
        """Returns the last lines of output, for a message."""
        self._has_ended.wait(1.0)
        return str(self._output)

    def ended(self) -> str:
        """Returns how the process ended, as a clause of a message."""
        self._has_ended.wait(END_S)
        return "was lost with its node, or closed its connection" if self._code is None else _end_clause(self._code)

    def state(self) -> str:
        """Returns the process's state in a word."""
        return "ended" if self._has_ended.is_set() else "not ended"

    def send_signal(self, number: signal.Signals) -> None:
        """Lets the host signal the process."""
        with suppress(OSError):
            self._control.sendall(msgspec.json.encode(SignalRank(signal=int(number))) + b"\n")

    def wait(self, timeout_s: float) -> bool:
        """Waits for the news of the process's end; returns False after the time-out."""
        return self._has_ended.wait(timeout_s)

    def close(self) -> None:
        """Closes both connections, so that the host ends the process."""
        # The host ends the process now at the latest.
        self._has_ended.wait(END_S)
        for shut in (self.pipe.shut, lambda: self._control.shutdown(socket.SHUT_RDWR)):
            with suppress(OSError):
                shut()

    def _follow(self) -> None:
        """Reads the host's news of the process until its end, or until the connection ends."""
        with suppress(OSError, *UNREADABLE), self._news as lines:
            for line in lines:
                news: HostNews = json_decoder(HostNews).decode(line)  # type: ignore[arg-type]
                if isinstance(news, RankWrote):
                    self._output.take(news.text)
                elif isinstance(news, RankEnded):
                    self._code = news.code
                    break  # the host keeps the connection open for signals until it is closed here
        self._has_ended.set()


def start_rank(rank: int, ranks: int, nodes: RankNodes, *, crew: str, timeout_s: float) -> RankChild:
    """Starts the process of a rank on the rank's node. `crew` is the random id of the trainer's set of ranks. Raises
    OSError, or RankError for another node.
    """
    machine = rank // nodes.local_ranks(ranks)
    if machine == 0:
        return LocalRank(rank, ranks, timeout_s=timeout_s)
    return RemoteRank(rank, ranks, nodes.hosts[machine - 1], crew=crew, timeout_s=timeout_s)


def _connect(host: RankHostPlace, hello: RankHello) -> socket.socket:
    """Opens a connection to a host of ranks, and sends the greeting."""
    connection = socket.create_connection((host.address, host.port), timeout=_CONNECT_S)
    connection.sendall(msgspec.json.encode(hello) + b"\n")
    connection.settimeout(None)
    watch_connection(connection)
    return connection


def _limit_sending(connection: socket.socket, timeout_s: float) -> None:
    """Limits the time that sending a call may block."""
    # A rank that reads nothing, stopped or stuck, must not block the caller for ever.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(timeout_s) + 1, 0))


def _end_clause(code: int) -> str:
    """Returns an exit code as the end of a sentence, such as "ended with exit code 1"."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (", perhaps because the machine ran out of memory" if name == "SIGKILL" else "")
