"""`RankHost`: starts ranks of a trainer on this machine, for a trainer process on another machine.

The trainer opens two connections for each rank. The first carries the calls of the running rank; over the second, of
JSON lines, the trainer starts the rank, sends it signals, and receives its output and exit code. Connections without
the key are closed.
"""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.workers.engines.ranks.nodes import watch_connection

_HELLO_S: Final = 30.0
"""Maximum seconds until a connection sends its first line, and until the second connection of its rank arrives."""
_LINE_SIZE_BYTES: Final = 4096
"""Maximum size of a line of the protocol."""
_CONNECTIONS: Final = 2048
"""Maximum connections at once; further ones are closed."""


class RankHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of each of a rank's two connections."""

    key: str
    """The secret of the rank host."""
    crew: str
    """Random id of the trainer's set of ranks; both connections of a rank have the same one."""
    rank: int
    """The rank's number, from 0."""
    ranks: int
    """Number of ranks of the trainer."""
    starts: bool
    """True: connection for starting and observing the rank; False: connection for the rank's calls."""


class SignalRank(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the trainer to send a signal to the rank's process."""

    signal: int
    """Number of the signal."""


class RankStarted(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A message to the trainer: the rank's process was started, under this process id."""

    pid: int
    """Process id on the host."""


class RankWrote(msgspec.Struct, frozen=True, kw_only=True, tag="wrote"):
    """A message to the trainer: a line of the rank's output."""

    text: str
    """A line of output."""


class RankEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """A message to the trainer: the rank's process ended; a `code` of -N stands for signal N."""

    code: int
    """Exit code; negative for a signal."""


HostNews: TypeAlias = RankStarted | RankWrote | RankEnded
"""News of a rank sent by its host."""


def rank_process(connection: socket.socket, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    """Starts the process of a rank with an inherited connection for its calls; standard output and error are a pipe.
    Raises OSError.
    """
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "rftd.workers.engines.ranks.rank_process",
            str(connection.fileno()),
            f"rank={rank}/{ranks}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=[connection.fileno()],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def read_line(connection: socket.socket) -> bytes:
    """Reads one line without the line feed, byte by byte: bytes after the line must stay unread, for the rank.

    Empty for a closed connection, and for a line of 4,096 bytes or more.
    """
    line = bytearray()
    while len(line) < _LINE_SIZE_BYTES:
        byte = connection.recv(1)
        if byte in (b"", b"\n"):
            return bytes(line) if byte else b""
        line += byte
    return b""


class RankHost:
    """Accepts connections of trainers at one address of this machine, and starts a process for each rank, until
    closed.
    """

    def __init__(self, address: str) -> None:
        """Starts listening at `address`, on a free port. Raises OSError."""
        self.key = secrets.token_hex(32)
        """The secret required of every connection."""
        self._waiting: dict[tuple[str, int], socket.socket] = {}
        self._changed = threading.Condition()
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)
        self._listener = socket.create_server((address, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="rank-host", daemon=True).start()

    def close(self) -> None:
        """Stops accepting connections. Running ranks continue until their trainer ends."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        """Accepts connections until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            if not self._connections.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="rank-connection", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answers one connection: starts a rank, or stores the connection for the rank's calls."""
        try:
            hello = self._hello(connection)
            if hello is None:
                connection.close()
            elif hello.starts:
                with connection:
                    self._start(connection, hello)
            else:
                self._await_start(connection, hello)
        except OSError:
            connection.close()
        finally:
            self._connections.release()

    def _hello(self, connection: socket.socket) -> RankHello | None:
        """Reads and checks the first line of a connection; None if it is malformed or has a wrong key."""
        connection.settimeout(_HELLO_S)
        try:
            hello = json_decoder(RankHello).decode(read_line(connection))
        except UNREADABLE:
            return None
        if not hmac.compare_digest(hello.key.encode(), self.key.encode()):
            return None
        connection.settimeout(None)
        watch_connection(connection)
        return hello

    def _await_start(self, connection: socket.socket, hello: RankHello) -> None:
        """Keeps a connection for calls until the rank's control connection arrives; closes it after a time-out."""
        rank_key = (hello.crew, hello.rank)
        with self._changed:
            self._waiting[rank_key] = connection
            self._changed.notify_all()
            matched = self._changed.wait_for(lambda: self._waiting.get(rank_key) is not connection, _HELLO_S)
            if not matched:
                del self._waiting[rank_key]
        if not matched:
            connection.close()

    def _start(self, control: socket.socket, hello: RankHello) -> None:
        """Starts a rank once its connection for calls has arrived, and reports its output and end."""
        rank_key = (hello.crew, hello.rank)
        with self._changed:
            if not self._changed.wait_for(lambda: rank_key in self._waiting, _HELLO_S):
                return
            call_connection = self._waiting.pop(rank_key)
            self._changed.notify_all()
        with call_connection:
            process = rank_process(call_connection, hello.rank, hello.ranks)
        signals_thread = threading.Thread(
            target=_follow_trainer, args=(control, process), name="rank-signals", daemon=True
        )
        signals_thread.start()
        try:
            assert process.stdout is not None
            with process.stdout as output:
                control.sendall(_line(RankStarted(pid=process.pid)))
                for text in output:
                    control.sendall(_line(RankWrote(text=text.decode(errors="replace").rstrip("\n"))))
        except OSError:  # the trainer is gone
            process.kill()
        code = process.wait()
        with suppress(OSError):
            control.sendall(_line(RankEnded(code=code)))


def _follow_trainer(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Sends the process the signals requested by the trainer, and kills it once the trainer is gone."""
    with suppress(OSError, *UNREADABLE), control.makefile("rb") as lines:
        for line in lines:
            process.send_signal(json_decoder(SignalRank).decode(line).signal)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)


def _line(news: HostNews) -> bytes:
    """Returns news as a line of the protocol."""
    return msgspec.json.encode(news) + b"\n"
