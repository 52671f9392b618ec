"""`EnvironmentConnection`: one session with an environment's server, over HTTP on one connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any, Final, TypeVar

import h11

from rftd.ops import limits
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.errors import RolloutError
from rftd.workers.workflows.environments.contract import (
    SOCKET,
    BegunEpisode,
    CallFailure,
    ClosedSession,
    EpisodeScore,
    TakenStep,
    TaskPage,
)

T = TypeVar("T")
_CHUNK_SIZE_BYTES: Final = 1 << 16
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
        try:
            async with asyncio.timeout(self._step_s):
                status, content = await self._exchanged(call, json.dumps(body, default=str).encode())
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

    async def _exchanged(self, call: str, body: bytes) -> tuple[int, bytes]:
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
