"""Processor time of a daemon whose run is watched by ten listeners, against one: in pairs, clients in other processes.

A run of 400 steps goes on by a step each half second; what one listener costs is counted with the steps themselves.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import median_of, median_ratio, tell
from synthetic.daemon.log_operations import LogOperations
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun

from rftd.daemon.http.api.app import make_app
from rftd.ops.bound_socket import bind
from rftd.ops.clock import SystemClock
from rftd.ops.http_server import serving_http
from rftd.storage.database.engine import open_database, sqlite_url
from rftd.storage.projector.projector import Projector
from rftd.streams.memory import MemoryLog

STEPS, PAIRS, CHANGES, PAUSE_S = 400, 3, 16, 0.5
LISTEN: Final = """
import socket, sys
reader = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
reader.sendall(b"GET /v1/experiments/watched/stream HTTP/1.1\\r\\nhost: localhost\\r\\n\\r\\n")
total = 0
while data := reader.recv(1 << 16):
    total += len(data)
    print(total, flush=True)
"""


class Figures(msgspec.Struct):
    """Processor time of the daemon for a window of steps, in milliseconds, and bytes sent to one listener."""

    alone_ms: float
    one_ms: float
    ten_ms: float
    ten_to_one_ratio: float
    added_ratio: float
    """What ten listeners add to the daemon's own time, over what one adds."""
    first_kb: float
    """Of the first event, the whole page."""
    change_kb: float
    """Of a change."""


async def measured() -> Figures:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        log, engine = MemoryLog(), open_database(sqlite_url(Path(folder) / "state.db"))
        projector = Projector(log, engine, clock=SystemClock())
        run = SyntheticRun(Recorder(), name="watched", steps=9_999)
        run.warmed_up()
        written = 0

        async def go_on() -> None:
            nonlocal written
            run.explore()
            run.explore()
            run.train()
            await log.append(run.recorder.drafts[written:])
            written = len(run.recorder.drafts)
            await projector.catch_up()

        for _ in range(STEPS):
            await go_on()
        app = make_app(operations=LogOperations(log), log=log, engine=engine, projector=projector)
        bound = bind("127.0.0.1", 0)

        async def window(listeners: int) -> tuple[float, list[int]]:
            """Processor time of a window, and the bytes that the first listener had after each event."""
            port = str(bound.getsockname()[1])
            clients = [
                await asyncio.create_subprocess_exec(sys.executable, "-c", LISTEN, port, stdout=asyncio.subprocess.PIPE)
                for _ in range(listeners)
            ]
            for client in clients:
                assert client.stdout is not None
                await client.stdout.readline()
            await asyncio.sleep(1.0)
            began_s = time.process_time()
            for _ in range(CHANGES):
                await go_on()
                await asyncio.sleep(PAUSE_S)
            spent_ms = 1e3 * (time.process_time() - began_s)
            sizes: list[int] = []
            for number, client in enumerate(clients):
                client.kill()
                out, _ = await client.communicate()
                if number == 0:
                    sizes = [int(line) for line in out.split()]
            return spent_ms, sizes

        async with serving_http(app, bound):
            await window(1)
            alone, one, ten, sizes = [], [], [], []
            for _ in range(PAIRS):
                alone.append((await window(0))[0])
                spent_ms, sizes = await window(1)
                one.append(spent_ms)
                ten.append((await window(10))[0])
        bound.close()
        await projector.close()
        await engine.dispose()
    base = median_of(alone, 1)
    added = (median_of(ten, 1) - base) / (median_of(one, 1) - base)
    return Figures(
        alone_ms=base,
        one_ms=median_of(one, 1),
        ten_ms=median_of(ten, 1),
        ten_to_one_ratio=median_ratio(ten, one),
        added_ratio=round(added, 2),
        first_kb=round(sizes[0] / 1e3, 1),
        change_kb=round((sizes[-1] - sizes[0]) / max(1, CHANGES) / 1e3, 2),
    )


if __name__ == "__main__":
    tell(asyncio.run(measured()))
