"""A whole run where no event loop is asyncio's own and no worker is on the main thread, as in an actor of Ray."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from rftd.ops.clock import Clock
from rftd.ops.ids import Ids
from rftd.ops.logs import logger
from rftd.streams.backends.sqlite.log import SqliteLog
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.spine import Status
from rftd.streams.socket.client import SocketLog
from rftd.streams.socket.server import LogServer
from rftd.streams.spec import ModelSpec, RolloutSpec, TrainerSpec
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.launcher.executor import Handle, WorkerOrder
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.process import run_explorer, run_trainer

MakeLoop = Callable[[], asyncio.AbstractEventLoop]


class ForeignTransport:
    """A transport that is of none of asyncio's classes, as those of uvloop are not."""

    made = 0

    def __init__(self, inner: asyncio.BaseTransport) -> None:
        ForeignTransport.made += 1
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ForeignLoop(asyncio.SelectorEventLoop):
    """A loop that gives protocols such transports."""

    async def create_unix_connection(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        return await super().create_unix_connection(_foreign(protocol_factory), *args, **options)

    async def create_unix_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        return await super().create_unix_server(_foreign(protocol_factory), *args, **options)


def _foreign(make: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.BaseProtocol]:
    def made() -> asyncio.BaseProtocol:
        protocol = make()
        begin = protocol.connection_made
        protocol.connection_made = lambda inner: begin(ForeignTransport(inner))  # type: ignore
        return protocol

    return made


def loops() -> dict[str, MakeLoop]:
    """The loops that there are here: uvloop comes with inference engines, and is none of our dependencies."""
    found: dict[str, MakeLoop] = {"foreign": ForeignLoop}
    if importlib.util.find_spec("uvloop") is not None:
        found["uvloop"] = importlib.import_module("uvloop").new_event_loop
    return found


LOOPS = loops()


class ThreadHandle:
    """A worker on a thread of its own, with an event loop of its own."""

    pid = os.getpid()
    waits = None
    reason = ""

    def __init__(self, work: Callable[[asyncio.Event], Any], make_loop: MakeLoop) -> None:
        self.failure: BaseException | None = None
        self._work = work
        self._make_loop = make_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def exit_code(self) -> int | None:
        if self._thread.is_alive():
            return None
        return 0 if self.failure is None else 1

    def terminate(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    kill = terminate

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._make_loop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._work(self._stop))
        except BaseException as error:
            self.failure = error


class ThreadExecutor:
    """Runs workers on threads, as clients of the log's socket."""

    def __init__(self, path: Path, clock: Clock, ids: Ids, make_loop: MakeLoop) -> None:
        self._path, self._clock, self._ids, self._make_loop = path, clock, ids, make_loop
        self.handles: list[ThreadHandle] = []

    def start(self, order: WorkerOrder) -> Handle:
        async def work(stop: asyncio.Event) -> None:
            parts = {"clock": self._clock, "ids": self._ids, "logger": logger(role=order.role), "worker": order.worker}
            log = await SocketLog.connect(self._path)
            try:
                if order.role == "trainer":
                    await run_trainer(log, order.experiment, stop, **parts)
                else:
                    await run_explorer(log, order.experiment, order.slot, stop, **parts)
            finally:
                await log.close()

        self.handles.append(ThreadHandle(work, self._make_loop))
        return self.handles[-1]

    def adopt(self, order: WorkerOrder, started: WorkerStarted) -> Handle | None:
        return None

    def host(self) -> Host:
        return ANY_HOST

    def lives(self, started: WorkerStarted) -> bool | None:
        return None

    def clear(self, order: WorkerOrder) -> Handle | None:
        return None


@pytest.fixture(params=LOOPS)
def make_loop(request: pytest.FixtureRequest) -> MakeLoop:
    return LOOPS[request.param]


@pytest.fixture
def anyio_backend(make_loop: MakeLoop) -> tuple[str, dict[str, Any]]:
    """The daemon's side has such a loop, too."""
    return ("asyncio", {"loop_factory": make_loop})


@pytest.fixture
def path() -> Iterator[Path]:
    """A short place for a socket."""
    with TemporaryDirectory(prefix="rftd-") as runtime:
        yield Path(runtime) / "log.sock"


@pytest.mark.anyio
@pytest.mark.parametrize("engine", ["fake", pytest.param("torch", marks=pytest.mark.slow)])
async def test_a_run_on_other_loops_and_threads(
    tmp_path: Path, path: Path, clock, ids, fake_world, make_loop: MakeLoop, engine: str
) -> None:
    spec = fake_world.spec(tmp_path)
    if engine == "torch":
        model = str(make_tiny_model(tmp_path / "model", seed=3, hidden_size=32, heads=2))
        parts = {
            "rollout": RolloutSpec(engine="torch", concurrency=8, max_timeout_s=60.0, threads_each=True),
            "trainer": TrainerSpec(engine="torch", save_interval=4),
            "model": ModelSpec(path=model, max_model_len=32, max_prompt_tokens=16, max_response_tokens=8),
        }
        spec = msgspec.structs.replace(
            spec, stages=tuple(msgspec.structs.replace(stage, **parts) for stage in spec.stages)
        )
    before = ForeignTransport.made
    log = await SqliteLog.open(tmp_path / "log")
    async with LogServer(log, path):
        executor = ThreadExecutor(path, clock, ids, make_loop)
        run = await fake_world.run(log, spec, clock, ids, executor)
        async with asyncio.timeout(120):
            await run.drive()
    assert [handle.failure for handle in executor.handles] == [None] * 2
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    assert run.state.spine.last_version == 8
    assert len(run.state.spine.evaluated) > 0
    assert make_loop is not ForeignLoop or ForeignTransport.made - before >= 4, "both ends of both workers' sockets"
    assert (await fake_world.verified(log)).clean
    await log.close()
