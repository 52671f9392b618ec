"""`RankHost`: starts ranks on a machine for the trainer process of another one, and ends them with it.

For each rank the trainer connects twice. Over the first connection the rank itself is called, once it runs; over the
second one, of JSON lines, the trainer has it started and is told what it writes and how it ends. Whoever does not know
the key is sent away.
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
"""The longest that whoever connects may take to say what it wants, and its other connection to come."""
_LINE_SIZE_BYTES: Final = 4096
_CONNECTIONS: Final = 2048
"""Those that wait at once; more are sent away."""


class RankHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of either connection."""

    key: str
    crew: str
    """The number of the trainer's crew, under which its two connections are found."""
    rank: int
    ranks: int
    starts: bool
    """False: the rank shall be called over this connection; True: start it, and tell of it here."""


class SignalRank(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's wish that the process is sent a signal."""

    signal: int


class RankStarted(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """The process runs."""

    pid: int


class RankWrote(msgspec.Struct, frozen=True, kw_only=True, tag="wrote"):
    """A line of what it writes."""

    text: str


class RankEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The process ended; the code is as `subprocess` has it."""

    code: int


HostNews: TypeAlias = RankStarted | RankWrote | RankEnded


def rank_process(connection: socket.socket, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    """The process of a rank, which is called over the connection. Raises OSError."""
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
    """A line, byte by byte, because what follows it is not for us; empty if there is none."""
    line = bytearray()
    while len(line) < _LINE_SIZE_BYTES:
        byte = connection.recv(1)
        if byte in (b"", b"\n"):
            return bytes(line) if byte else b""
        line += byte
    return b""


class RankHost:
    """Listens at one address of its machine, from the beginning until it is closed."""

    def __init__(self, address: str) -> None:
        """Raises OSError."""
        self.key = secrets.token_hex(32)
        """The secret of whoever may start ranks here."""
        self._waiting: dict[tuple[str, int], socket.socket] = {}
        self._came = threading.Condition()
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)
        self._listener = socket.create_server((address, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="rank-host", daemon=True).start()

    def close(self) -> None:
        """Takes no more connections. Ranks that run end with their trainer."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
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
        """The wish of whoever connected; None if it is none, or may not have one."""
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
        place = (hello.crew, hello.rank)
        with self._came:
            self._waiting[place] = connection
            self._came.notify_all()
            taken = self._came.wait_for(lambda: self._waiting.get(place) is not connection, _HELLO_S)
            if not taken:
                del self._waiting[place]
        if not taken:
            connection.close()

    def _start(self, control: socket.socket, hello: RankHello) -> None:
        place = (hello.crew, hello.rank)
        with self._came:
            if not self._came.wait_for(lambda: place in self._waiting, _HELLO_S):
                return
            called = self._waiting.pop(place)
            self._came.notify_all()
        with called:
            process = rank_process(called, hello.rank, hello.ranks)
        obeying = threading.Thread(target=_obey, args=(control, process), name="rank-signals", daemon=True)
        obeying.start()
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


def _obey(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Sends the process the signals that the trainer wishes, and ends it when the trainer is gone."""
    with suppress(OSError, *UNREADABLE), control.makefile("rb") as lines:
        for line in lines:
            process.send_signal(json_decoder(SignalRank).decode(line).signal)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)


def _line(news: HostNews) -> bytes:
    return msgspec.json.encode(news) + b"\n"
