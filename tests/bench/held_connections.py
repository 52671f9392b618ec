"""The daemon's answers to others while somebody holds 1,200 connections: silent ones, slow heads, slow bodies.

`python -P tests/bench/held_connections.py [--seconds 60] [--held 1200] [--files N]` prints one JSON object: of each
kind of held connections the times in which another client's requests were answered, each on a connection of its own,
and the lines that the daemon logged. Whoever is shown out comes again a second later. `--files` is the daemon's limit
of open files, soft and hard (1024 is common). It fails if a request was not answered, or if a bar is broken.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import urlsplit

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import median_of, read_options, tell
from synthetic.daemon.scene import EXPERIMENT, SHORT, Scene

P99_BAR_MS: Final = 200.0
LINES_BAR: Final = 100
ASK_S: Final = 0.05
AGAIN_S: Final = 1.0
LEAST_HELD: Final = 300
SETTLE_S: Final = 3.0
SPAWN: Final = multiprocessing.get_context("spawn")
DRIP_S: Final = 5.0
"""The pause between two bytes of a slow client."""
HEAD: Final = b"GET /v1/experiments HTTP/1.1\r\nhost: localhost\r\nx-slow: "
BODY: Final = b"POST /v1/experiments HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
NONE: Final = "none"
KINDS: Final = (NONE, "idle", "slow heads", "slow bodies")
"""First the answers with nobody else there, which show how busy the machine itself is."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to others while connections of one kind were held."""

    held: int
    """The connections that the holder had open at the end; of those that were shown out some are still to come."""
    shown_out: int
    """Its connections that the daemon ended."""
    answers: int
    p50_ms: float
    p99_ms: float
    most_ms: float


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    open_files: int
    """The limit under which the daemon started."""
    kinds: dict[str, Answers]
    log_lines: int
    """All that the daemon logged meanwhile."""


class Counts:
    """The counts that a holder shares with the process that measures."""

    def __init__(self) -> None:
        self.open: Any = SPAWN.Value("i", 0)
        self.shown_out: Any = SPAWN.Value("i", 0)


def hold(address: tuple[str, int], kind: str, count: int, bearer: bytes, counts: Counts) -> None:
    """The holder's process."""
    asyncio.run(Holder(address, kind, count, bearer, counts).hold())


class Holder:
    """Holds connections of one kind to an address, each on a task of a process of its own."""

    def __init__(self, address: tuple[str, int], kind: str, count: int, bearer: bytes, counts: Counts) -> None:
        self._address = address
        self._kind = kind
        self._count = count
        self._bearer = bearer
        self._counts = counts

    async def hold(self) -> None:
        """Never ends by itself."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._count):
                tasks.create_task(self._hold())

    async def _hold(self) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(*self._address)
                self._counts.open.value += 1
                try:
                    if self._kind == "slow heads":
                        writer.write(HEAD)
                    elif self._kind == "slow bodies":
                        writer.write(BODY + self._bearer + b"content-length: 100000\r\n\r\n")
                    await self._until_shown_out(reader, writer)
                    self._counts.shown_out.value += 1
                finally:
                    self._counts.open.value -= 1
                    writer.transport.abort()
            await asyncio.sleep(AGAIN_S)

    async def _until_shown_out(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(DRIP_S):
                    await reader.read(4096)
                    return
            if self._kind != "idle":
                writer.write(b"x")


async def asked(address: tuple[str, int], bearer: bytes, seconds: float) -> list[float]:
    """The times in which a client got its answers, each on a connection of its own. Raises if one did not come."""
    took_ms: list[float] = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /v1/experiments HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + bearer + b"\r\n")
            answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        took_ms.append(1000 * (time.monotonic() - began_s))
        await asyncio.sleep(ASK_S)
    return took_ms


async def measured(scene: Scene, held: int, seconds: float) -> dict[str, Answers]:
    """The answers while each kind of connections was held for so long."""
    url = urlsplit(scene.host.url)
    address = (url.hostname or "", url.port or 0)
    owner = scene.data.root / "owner.token"
    token = owner.read_text().strip() if owner.exists() else os.environ.get("RFTD_TOKEN", "")
    bearer = f"authorization: Bearer {token}\r\n".encode() if token else b""
    kinds = {}
    for kind in KINDS:
        counts = Counts()
        least = 0 if kind == NONE else min(held, LEAST_HELD)
        holder = SPAWN.Process(target=hold, args=(address, kind, held if least else 0, bearer, counts), daemon=True)
        holder.start()
        try:
            while counts.open.value < least:  # noqa: ASYNC110 - another process counts them
                await asyncio.sleep(0.1)
            await asyncio.sleep(SETTLE_S)
            took_ms = sorted(await asked(address, bearer, seconds))
            open_now = counts.open.value
        finally:
            holder.kill()
            holder.join()
        assert len(took_ms) > seconds, f"{kind}: {len(took_ms)} answers"
        kinds[kind] = Answers(
            held=open_now,
            shown_out=counts.shown_out.value,
            answers=len(took_ms),
            p50_ms=median_of(took_ms, 1),
            p99_ms=round(took_ms[int(0.99 * len(took_ms))], 1),
            most_ms=round(took_ms[-1], 1),
        )
    return kinds


@contextmanager
def limited(folder: Path, files: int) -> Iterator[None]:
    """Programs that are started while the block runs may open so many files, soft and hard; 0: as many as this one."""
    if not files:
        yield
        return
    # This process needs more: a limit of its own could not be taken back.
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nulimit -n {files}\nexec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o700)
    with patch.object(sys, "executable", str(program)):
        yield


def _lines(scene: Scene) -> int:
    return sum(len(path.read_text().splitlines()) for path in (scene.data.daemon_log, scene.folder / "daemon.log"))


def main() -> int:
    """Prints what was measured; 1 if a bar is broken."""
    chosen = read_options(
        __doc__, seconds=60.0, held=1200, files=(0, "the daemon's limit of open files; 0: as it is here")
    )
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory(prefix="rftd-") as folder, limited(Path(folder), chosen.files):
        scene = Scene(Path(folder))
        with scene.host:
            scene.until_ended(scene.submit(EXPERIMENT, *SHORT))
            before = _lines(scene)
            kinds = asyncio.run(measured(scene, chosen.held, chosen.seconds))
            result = Held(open_files=chosen.files or limit, kinds=kinds, log_lines=_lines(scene) - before)
    tell(result)
    late = [kind for kind, answers in result.kinds.items() if answers.p99_ms > P99_BAR_MS]
    return int(bool(late) or result.log_lines > LINES_BAR)


if __name__ == "__main__":
    sys.exit(main())
