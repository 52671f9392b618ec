"""A server whose process can open no more files lets clients go, rests, and says so in one line."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from typing import Any, Final

import pytest
from synthetic.until import PATIENCE_S, until

from rftd.ops import http_server
from rftd.ops.http_server import Listener

pytestmark = pytest.mark.anyio

SERVES = """
import asyncio, resource, sys
from starlette.responses import PlainTextResponse
from rftd.ops.bound_socket import bind
from rftd.ops.http_server import serving_http
from rftd.ops.logs import configure

async def main():
    bound = bind("127.0.0.1", 0)
    async with serving_http(PlainTextResponse("here"), bound):
        print(bound.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
configure(libraries=True)
asyncio.run(main())
"""


class Full(socket.socket):
    """A listening socket of a process that has no file left to accept with."""

    full = True
    tries = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.tries += 1
        if self.full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


class Lines:
    """Keeps the events of warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, event: str, **_: Any) -> None:
        self.warnings.append(event)

    debug = info = error = warning


class Greets(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


async def test_where_no_file_can_be_opened_the_loop_rests_between_two_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio's own tries, and logs, as often as its backlog is long, each time."""
    monkeypatch.setattr(http_server, "_REST_S", 0.01)
    lines = Lines()
    with Full(socket.AF_INET, socket.SOCK_STREAM) as full:
        full.bind(("127.0.0.1", 0))
        listener = Listener(full, Greets, logger=lines)
        listener.listen()
        reader, writer = await asyncio.open_connection(*full.getsockname())
        await until(lambda: len(lines.warnings) >= 3)
        assert set(lines.warnings) == {"connections.no_room"}
        assert full.tries == 1 + 2 * len(
            lines.warnings
        )  # one before the first pause; then one, and one with the reserve
        full.full = False
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"hello"
        writer.close()
        listener.close()
        listener.close()
        await listener.wait_closed()


GET = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


class Served:
    """A server in a process of its own that may open only so many files."""

    def __init__(self, files: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVES, str(files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address: Final = ("127.0.0.1", int(self.process.stdout.readline()))

    async def log(self) -> str:
        _, written = await asyncio.to_thread(self.process.communicate)
        assert self.process.returncode == 0
        return written


@pytest.mark.parametrize("files", [64, 256])
async def test_more_connections_than_files_keep_nobody_out_and_fill_no_log(files: int) -> None:
    served = Served(files)
    held = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(300):
                held.append(await asyncio.open_connection(*served.address))
            for _ in range(20):
                reader, writer = await asyncio.open_connection(*served.address)
                writer.write(GET)
                assert (await reader.read()).endswith(b"here")
                writer.close()
    finally:
        for _, writer in held:
            writer.transport.abort()
        log = await served.log()
    assert len(log.splitlines()) <= 2, log


async def test_requests_behind_a_burst_of_silent_connections_are_answered() -> None:
    """All of them wait for one turn of the server: so many are accepted before one is closed that no file is left."""
    served = Served(64)
    connections = []
    try:
        served.process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(300):
                connections.append(await asyncio.open_connection(*served.address))
            for _ in range(20):
                connections.append(await asyncio.open_connection(*served.address))
                connections[-1][1].write(GET)
            served.process.send_signal(signal.SIGCONT)
            for reader, _ in connections[300:]:
                assert (await reader.read()).endswith(b"here")
    finally:
        served.process.send_signal(signal.SIGCONT)
        for _, writer in connections:
            writer.transport.abort()
        log = await served.log()
    assert not log


@pytest.mark.parametrize(("soft", "hard", "then"), [(64, 512, 512), (64, 64, 64), (300, 512, 256)])
def test_a_process_raises_its_own_limit_and_never_lowers_it(soft: int, hard: int, then: int) -> None:
    wanted = 256 if then == 256 else 65_536
    program = (
        "import resource; from rftd.ops.open_files import *;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        f"told = raise_open_files({wanted}); assert told == open_files(); print(told)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) == max(soft, then)
