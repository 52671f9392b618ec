"""A whole run where no event loop is asyncio's own and no worker is on the main thread, as in an actor of Ray."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rftd.ops.logs import logger
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.spine import Status
from rftd.streams.spec.spec import ModelSpec, RolloutSpec, TrainerSpec
from rftd.streams.sqlite.log import SqliteLog
from rftd.streams.sqlite.socket.server import LogServer
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.guest import Assignment, Guest, Outcome
from rftd.workers.hosts.executor import Handle, WorkerOrder
from rftd.workers.models.tiny_model import make_tiny_model

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


class GuestHandle:
    """A worker that this process runs, seen by its launcher."""

    pid = os.getpid()
    waits = None

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        guest.begin()
        self.terminate = self.kill = guest.stop

    @property
    def reason(self) -> str:
        ended = self.guest.outcome(0.0)
        return "" if ended is None else ended.reason

    def exit_code(self) -> int | None:
        ended = self.guest.outcome(0.0)
        return None if ended is None else ended.code


class GuestExecutor:
    """Runs workers as guests of this process, clients of the log's socket."""

    def __init__(self, path: Path, make_loop: MakeLoop) -> None:
        self._path, self._make_loop = path, make_loop
        self.handles: list[GuestHandle] = []

    def start(self, order: WorkerOrder) -> Handle:
        assignment = Assignment(
            worker=order.worker,
            experiment=order.experiment,
            role=order.role,
            slot=order.slot,
            log_url=f"unix:{self._path}",
        )
        self.handles.append(GuestHandle(Guest(assignment, logger(role=order.role), make_loop=self._make_loop)))
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
        executor = GuestExecutor(path, make_loop)
        run = await fake_world.run(log, spec, clock, ids, executor)
        async with asyncio.timeout(120):
            await run.drive()
    assert [handle.guest.outcome(30.0) for handle in executor.handles] == [Outcome(code=0)] * 2
    assert run.state.spine.status is Status.COMPLETED, run.state.spine.reason
    assert run.state.spine.last_version == 8
    assert len(run.state.spine.evaluated) > 0
    assert make_loop is not ForeignLoop or ForeignTransport.made - before >= 4, "both ends of both workers' sockets"
    assert (await fake_world.verified(log)).clean
    await log.close()


def test_a_guest_is_stopped_from_another_thread_while_its_log_does_not_answer(path: Path) -> None:
    """It has no signals: whoever runs it has to be able to end it at any moment, and twice."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()  # takes connections, and answers none
    assignment = Assignment(worker=UUID(int=1), experiment=UUID(int=2), role="trainer", slot=-1, log_url=f"unix:{path}")
    guest = Guest(assignment, logger())
    guest.begin()
    taken, _ = listening.accept()
    guest.stop()
    assert guest.outcome(30.0) == Outcome(code=0)
    guest.stop()
    taken.close()
    listening.close()
