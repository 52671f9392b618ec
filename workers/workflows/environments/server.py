"""`EnvironmentServer`: the command of an environment in a sandbox, for all sessions of a worker.

The server starts with the first session, and again with the first session after its end. The end of the worker is the
end of the server: the warden of the sandbox watches the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import threading
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import h11
import msgspec

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import RolloutError
from rftd.workers.workflows.environments.address import COMMAND, PACKAGES, SERVER, EnvironmentAddress
from rftd.workers.workflows.environments.contract import (
    SOCKET,
    SOCKET_VARIABLE,
    STEP_VARIABLE,
    BegunEpisode,
    CallFailure,
    ClosedSession,
    EpisodeScore,
    TakenStep,
    TaskPage,
)
from rftd.workers.workflows.sandbox.python_homes import python_homes
from rftd.workers.workflows.sandbox.registry import open_sandbox
from rftd.workers.workflows.sandbox.run_folder import WORK, RunFolder, rollout_folder
from rftd.workers.workflows.sandbox.sandbox import Isolation, Sandbox, SandboxBounds, SandboxCommand, SandboxReport

T = TypeVar("T")
"""Type of an answer."""
_CHUNK_SIZE_BYTES: Final = 1 << 16
"""Bytes read at once."""
_CLOSE_S: Final = 1.0
"""Seconds for the answer to /close: a server without an answer learns the end from the closed connection."""


class EnvironmentConnection:
    """The calls of one session; each raises RolloutError at a failed call, a late answer, and a dead server."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, session: str, name: str, step_s: float
    ) -> None:
        """`name` is the environment's in messages; `step_s` bounds each call, in seconds."""
        self._reader = reader
        self._writer = writer
        self._session = session
        self._name = name
        self._step_s = step_s
        self._http = h11.Connection(h11.CLIENT)
        """State of the HTTP connection."""
        self.broken = False
        """True after a call without an answer in time, or at all."""

    async def tasks(self, first: int, count: int) -> list[dict[str, Any]]:
        """Returns up to `count` rows from row `first` on; empty at the end of the dataset."""
        return (await self._call("tasks", TaskPage, first=first, count=count)).rows

    async def reset(self, row: dict[str, Any], seed: int) -> str:
        """Begins an episode of a row, and returns the first observation."""
        return (await self._call("reset", BegunEpisode, session=self._session, row=row, seed=seed)).observation

    async def step(self, action: str) -> TakenStep:
        """Takes one action, a text of the model."""
        return await self._call("step", TakenStep, session=self._session, action=action)

    async def score(self) -> EpisodeScore:
        """Returns the reward of the episode until now."""
        return await self._call("score", EpisodeScore, session=self._session)

    async def close(self) -> None:
        """Ends the session, whatever its state."""
        try:
            if self._http.our_state is h11.IDLE and not self.broken:
                with contextlib.suppress(RolloutError, TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await self._call("close", ClosedSession, session=self._session)
        finally:
            self._writer.close()

    async def _call(self, call: str, kind: type[T], **body: Any) -> T:
        """Makes a call, and decodes the answer. Raises RolloutError."""
        try:
            async with asyncio.timeout(self._step_s):
                status, content = await self._exchange(call, json.dumps(body, default=str).encode())
        except TimeoutError as error:
            self.broken = True
            problem = f"environment {self._name!r} did not answer /{call} within {self._step_s:g} s"
            raise RolloutError(problem, field="step_s", fix="correct the environment, or raise step_s") from error
        except (OSError, EOFError, h11.RemoteProtocolError) as error:
            self.broken = True
            problem = f"environment {self._name!r} broke off at /{call}: {error or type(error).__name__}"
            raise RolloutError(problem, fix="see the environment's own messages") from error
        try:
            if status < 400:
                return json_decoder(kind).decode(content)
            failure = json_decoder(CallFailure).decode(content).error
        except UNREADABLE as error:
            problem = f"environment {self._name!r} answered /{call} with status {status} and no such object: {error}"
            raise RolloutError(problem, fix="correct the environment; docs/environments.md has the contract") from error
        problem = f"environment {self._name!r} failed at /{call}: {failure[: limits.ERROR_TEXT_CHARS]}"
        raise RolloutError(problem, fix="correct the environment, or this row")

    async def _exchange(self, call: str, body: bytes) -> tuple[int, bytes]:
        """Sends a request, and returns the status and the body of the answer."""
        headers = [("Host", "environment"), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        request = h11.Request(method="POST", target=f"/{call}", headers=headers)
        for message in (request, h11.Data(body), h11.EndOfMessage()):
            self._writer.write(self._http.send(message) or b"")
        await self._writer.drain()
        status = 0
        content = b""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(_CHUNK_SIZE_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                content += event.data
                if len(content) > limits.SANDBOX_FILE_SIZE_BYTES:
                    raise OSError(f"an answer of more than {limits.SANDBOX_FILE_SIZE_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError("the connection was closed")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return status, content


async def open_socket(work: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects to the socket in the folder of a command. Raises OSError while no server listens."""
    # By a descriptor: paths of sockets are short, and the command could put a link to another service there.
    descriptor = os.open(work / SOCKET, os.O_PATH | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISSOCK(status.st_mode) or status.st_nlink > 1:
            raise OSError(f"{SOCKET} is no socket")
        return await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


_PROGRAMS: Final = Path(__file__).with_name("programs")
"""Folder of the built-in servers."""
_POLL_INTERVAL_S: Final = 0.05
"""Seconds between two attempts to connect to a starting server."""


class ServedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """The command of an environment's server, with everything given to it."""

    address: EnvironmentAddress
    """Address of the environment."""
    command: tuple[str, ...] = ()
    """Command of the experiment file; empty for a built-in server."""
    folder: str | None = None
    """Folder copied for the command."""
    environ: Mapping[str, str] = {}
    """Variables of the command."""
    isolation: Isolation = "auto"
    """Isolation of the sandbox."""
    network: bool = False
    """True: the machine's network is reachable."""
    readable: tuple[str, ...] = ()
    """Paths readable in the sandbox."""
    bounds: SandboxBounds = SandboxBounds()
    """Bounds of the command."""
    start_s: float = 180.0
    """Seconds from the start of the command to the first connection."""
    step_s: float = 60.0
    """Seconds for the answer to a call."""

    @property
    def forks(self) -> bool:
        """True if each session has a process, so that a late answer concerns no other session."""
        return self.address.kind != COMMAND

    def prepare(self, folder: RunFolder) -> None:
        """Writes the files of the command. Blocks."""
        if self.folder is not None:
            folder.copy(Path(self.folder))
        if self.address.kind in PACKAGES:
            for name in (SERVER, f"{self.address.kind}_tasks.py"):
                folder.write(name, (_PROGRAMS / name).read_bytes())

    def sandboxed(self, folder: RunFolder) -> SandboxCommand:
        """Returns the command for a sandbox, without a bound of time: a server lives as long as the worker."""
        homes = python_homes(Path(self.address.python)) if self.address.python else []
        return SandboxCommand(
            words=self.address.words(self.command),
            environ={
                # Sets of texts in one order: an episode made again must be equal.
                "PYTHONHASHSEED": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
                **self.environ,
                SOCKET_VARIABLE: SOCKET,
                STEP_VARIABLE: str(self.step_s),
            },
            folder=folder,
            bounds=msgspec.structs.replace(self.bounds, wall_s=1e7),
            readable=(*self.readable, *homes),
            network=self.network,
        )


class EnvironmentServer:
    """Opens sessions with one environment's server, from any thread."""

    def __init__(self, program: ServedProgram) -> None:
        """The server starts with the first session."""
        self._program = program
        self._sandbox = open_sandbox(program.isolation, "")
        """Sandbox of the command."""
        self._starting = threading.Lock()
        """Held while a server is started."""
        self._life: _ServerLife | None = None
        """The present server; None before the first session."""
        self._sessions = count()
        """Counter whose numbers are the ids of sessions."""
        self._lives: list[_ServerLife] = []
        """Servers started by this object; ended ones are removed at the next start."""
        # At the end of the workflow's use, and of the process.
        weakref.finalize(self, _stop_all, self._lives)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[EnvironmentConnection]:
        """Opens a session, closed after the block. Raises RolloutError if no server starts."""
        life, connection = await self._connect()
        try:
            yield connection
        finally:
            if connection.broken and not self._program.forks:
                life.stop()  # a server without an answer may never answer anybody again
            await connection.close()

    def stop(self) -> None:
        """Ends the server; a later session starts another."""
        with self._starting:
            _stop_all(self._lives)

    def _living_server(self) -> _ServerLife:
        """Returns the present server, started anew after its end."""
        with self._starting:
            if self._life is None or self._life.ended:
                self._lives[:] = [life for life in self._lives if not life.ended]
                self._life = _ServerLife(self._program, self._sandbox)
                self._lives.append(self._life)
            return self._life

    async def _connect(self) -> tuple[_ServerLife, EnvironmentConnection]:
        """Connects to the living server; to the next one, if this one ends after it listened."""
        name = self._program.address.name
        life = self._living_server()
        try:
            async with asyncio.timeout(self._program.start_s):
                while True:
                    work = await asyncio.wrap_future(life.work)
                    with suppress(OSError):
                        reader, writer = await open_socket(work)
                        life.listened = True
                        break
                    if life.ended and not life.listened:
                        raise _start_error(life, name, self._program.bounds)
                    if life.ended:
                        life = self._living_server()
                    else:
                        await asyncio.sleep(_POLL_INTERVAL_S)
        except TimeoutError as error:
            life.stop()
            problem = f"the server of environment {name!r} did not listen within {self._program.start_s:g} s"
            raise RolloutError(problem, field="start_s", fix="correct the command, or raise start_s") from error
        session = str(next(self._sessions))
        connection = EnvironmentConnection(reader, writer, session=session, name=name, step_s=self._program.step_s)
        return life, connection


class _ServerLife:
    """One life of a server, on a thread with an event loop: sessions come from other loops, or none outlives it."""

    def __init__(self, program: ServedProgram, sandbox: Sandbox) -> None:
        """Starts the server on a new thread."""
        self.work: Future[Path] = Future()
        """The folder of the command, once written."""
        self.report: Future[SandboxReport] = Future()
        """Report on the command, once the command has ended."""
        self.listened = False
        """True after the first connection."""
        self._program = program
        self._sandbox = sandbox
        self._loop = asyncio.new_event_loop()
        """Event loop of the thread."""
        self._serving: asyncio.Task[None] | None = None
        """Task running the command; None before it starts."""
        self._stopped = False
        """True after `stop`."""
        threading.Thread(target=self._run_loop, name="environment", daemon=True).start()

    @property
    def ended(self) -> bool:
        """True after the end of the command, and after `stop`."""
        return self._stopped or self.report.done()

    def stop(self) -> None:
        """Ends the command with all its processes; does not wait."""
        self._stopped = True
        with suppress(RuntimeError):  # the loop is closed: the command has ended
            self._loop.call_soon_threadsafe(self._cancel_serving)

    def _cancel_serving(self) -> None:
        """Cancels the command, on the thread's loop."""
        if self._serving is not None:
            self._serving.cancel()

    def _run_loop(self) -> None:
        """Runs the command to its end; the body of the thread."""
        try:
            self._serving = self._loop.create_task(self._serve())
            self._loop.run_until_complete(self._serving)
        except BaseException as error:
            cause = RolloutError("the server was ended") if isinstance(error, asyncio.CancelledError) else error
            for future in (self.work, self.report):
                if not future.done():
                    future.set_exception(cause)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        """Writes the command's files, and runs it in the sandbox."""
        if self._stopped:
            raise asyncio.CancelledError
        async with rollout_folder() as folder:
            await asyncio.to_thread(self._program.prepare, folder)
            self.work.set_result(folder.path / WORK)
            self.report.set_result(await self._sandbox.run(self._program.sandboxed(folder)))


def _stop_all(lives: Sequence[_ServerLife]) -> None:
    """Stops all servers."""
    for life in lives:
        life.stop()


def _start_error(life: _ServerLife, name: str, bounds: SandboxBounds) -> RolloutError:
    """Returns the reason for a server ended before its first connection."""
    report = life.report
    if not report.done() or report.exception() is not None:
        cause = report.exception() if report.done() else None
        return cause if isinstance(cause, RolloutError) else RolloutError(f"the server of {name!r} ended: {cause}")
    try:
        report.result().check(f"the server of environment {name!r}", bounds)
    except RolloutError as error:
        if "No module named" in error.what:
            error.fix = "pip install 'rftd[environments]', or name the Python with the package: ?python=/PATH/python"
        return error
    return RolloutError(f"the server of environment {name!r} ended before it listened", fix="correct the command")


def checked_bounds(bounds: SandboxBounds) -> SandboxBounds:
    """Returns the bounds, with the memory of a server and of its sessions where the file names none."""
    if bounds == SandboxBounds():
        return msgspec.structs.replace(bounds, memory_mib=4096, processes=1024, output_mib=limits.MIB)
    return bounds
