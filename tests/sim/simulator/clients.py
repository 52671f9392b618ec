"""HTTP without a network, and the strangers who converse, judge, commit, hang up, and insist on being told so."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rftd.ops.errors import ConflictError
from simulator.loop import PROCESS, SimProcess

if TYPE_CHECKING:
    from simulator.world import World

GRACE_S = 2.0
"""What a server that leaves gives to the requests under way."""
PATIENCE_S = 20.0
POLL_INTERVAL_S = 0.05


class GoneError(Exception):
    """Nobody is there, or not any more, or the client had enough."""


class SimPort:
    """A port that a process listens on."""

    def __init__(self, process: SimProcess, shared: bool) -> None:
        self.process, self.shared = process, shared
        self.app: Any = None
        """Set while it answers."""
        self.was_healthy = False
        self.under_way: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Nobody is answered any more."""
        self.app = None


class Request:
    """One request, as ASGI has it, between two processes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, method: str, path: str, body: bytes) -> None:
        self._scope = {"type": "http", "method": method, "path": path, "headers": [(b"host", b"127.0.0.1:8010")]}
        self._body: bytes | None = body
        self._status = 0
        self._said = b""
        self.reply: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self._hung_up: asyncio.Future[None] = loop.create_future()

    async def serve(self, app: Any) -> None:
        """The server's part."""
        await app(self._scope, self._receive, self._send)

    def hang_up(self) -> None:
        """The client is gone."""
        if not self._hung_up.done():
            self._hung_up.set_result(None)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.shield(self._hung_up)
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        self._said += message.get("body", b"")
        if not message.get("more_body", False) and not self.reply.done():
            self.reply.set_result((self._status, self._said))


class SimNetwork:
    """The ports of a world, and the way to them."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world, self._chance = world, chance
        self.ports: list[SimPort] = []

    def bind(self, _address: str, _port: int, *, shared: bool = False) -> SimPort:
        """A socket of the simulated network, in place of `rftd.ops.http_server.bind`: workers are on one machine."""
        port = SimPort(PROCESS.get(), shared)
        taken = [each for each in self.ports if each.process.alive and not (shared and each.shared)]
        if taken and not self._world.scenario.external:
            raise ConflictError("cannot listen: the address is in use", field="--port", fix="end what listens there")
        self.ports.append(port)
        return port

    @asynccontextmanager
    async def serving(self, app: Any, port: SimPort, **_: Any) -> AsyncIterator[None]:
        """Serves over the simulated network, in place of `rftd.ops.http_server.serving_http`."""
        port.app = app
        try:
            yield
        finally:
            port.close()
            if port.under_way:
                await asyncio.wait(list(port.under_way), timeout=GRACE_S)
            for request in port.under_way:
                request.cancel()
            self.ports.remove(port)

    async def ask(self, port: SimPort, method: str, path: str, said: Any, patience_s: float) -> tuple[int, bytes]:
        """The status and the body of a reply. Raises GoneError."""
        loop = self._world.loop
        await asyncio.sleep(self._chance.uniform(0.0, 0.01))
        if port.app is None or not port.process.alive:
            raise GoneError
        request = Request(loop, method, path, b"" if said is None else json.dumps(said).encode())
        serving = port.process.spawn(request.serve(port.app))
        port.under_way.add(serving)
        serving.add_done_callback(port.under_way.discard)
        until_s = loop.time() + patience_s
        while not request.reply.done() and port.process.alive and loop.time() < until_s:
            if serving.done() and not request.reply.done():
                break
            await asyncio.wait({request.reply}, timeout=min(POLL_INTERVAL_S, patience_s))
        if not request.reply.done():
            request.hang_up()
            raise GoneError
        await asyncio.sleep(self._chance.uniform(0.0, 0.01))
        if self._chance.random() < 0.05:
            raise GoneError  # the reply is lost on its way
        return request.reply.result()

    async def anybody(self, method: str, path: str, said: Any, patience_s: float = PATIENCE_S) -> tuple[int, bytes]:
        """The reply of whichever server the connection reaches. Raises GoneError."""
        ports = [each for each in self.ports if each.process.alive and each.app is not None]
        if not ports:
            raise GoneError
        return await self.ask(self._chance.choice(ports), method, path, said, patience_s)


@dataclass(frozen=True)
class Judged:
    """Feedback that was acknowledged."""

    task: str
    reward: float
    """Another one for each feedback, so that an experience tells what it was made of."""
    answers: frozenset[str]


@dataclass(frozen=True)
class CommitTold:
    """A commit that was acknowledged."""

    known: frozenset[float]
    """The rewards of what was acknowledged before it was asked for."""
    runs: int


@dataclass
class Told:
    """What strangers were told, which must hold whatever happens afterwards."""

    judged: list[Judged] = field(default_factory=list)
    commits: list[CommitTold] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Replies that contradict an earlier one."""
    done: bool = False
    """Everything that the world needs was judged and committed, and they were told so."""


class SimClients:
    """Strangers who bring a world as many conversations as its experiment trains on."""

    def __init__(self, world: World, *, runs: int, together: int, impatient_p: float, chance: random.Random) -> None:
        """`together` runs are of one task."""
        self._world, self._chance = world, chance
        self._together, self._impatient_p = together, impatient_p
        self._todo = deque(range(runs))
        self._left = runs
        self._rewards = 0
        self.network = SimNetwork(world, chance)
        self.told = Told()
        self.repeat_p = 0.0
        """Of a question: it is asked again word for word, and the conversation goes on from either answer."""
        self.branch_p = 0.0
        """Of a question: another one is asked in its place too, and what is said of the run is said of both."""

    def begin(self, strangers: int) -> None:
        """They come."""
        process = self._world.process
        for _ in range(strangers):
            process.spawn(self._stranger())
        process.spawn(self._settle())
        process.spawn(self._watch())

    @property
    def _over(self) -> bool:
        return self._world.over(self._world.state)

    def _calm(self) -> bool:
        return self._world.loop.time() > self._world.scenario.calm_s

    async def _stranger(self) -> None:
        chance = self._chance
        while not self._over and self._left:
            await asyncio.sleep(chance.expovariate(2.0))
            if not self._todo:
                continue
            number = self._todo.popleft()
            if await self._converse(f"task {number // self._together}"):
                self._left -= 1
            else:
                self._todo.append(number)
            if chance.random() < 0.4:
                await self._commit()

    async def _settle(self) -> None:
        """Commits what is left, once everything was judged; the experiment then has all that it needs."""
        while not self._over and not self.told.done:
            await asyncio.sleep(0.5)
            if not self._left and await self._commit():
                self.told.done = True
                self._world.tell("the strangers have said all, and were told so")

    async def _converse(self, task: str) -> bool:
        """A conversation of some turns, and what it is worth; True once that is acknowledged."""
        chance, ids, messages = self._chance, [], []
        for _ in range(chance.choice([1, 1, 2, 3])):
            messages.append({"role": "user", "content": f"{chance.randint(0, 99)}+{chance.randint(0, 9)}="})
            asked = {"messages": messages, "stream": chance.random() < 0.2}
            impatient = not self._calm() and chance.random() < self._impatient_p
            told = await self._insist("/v1/chat/completions", asked, 0.1 if impatient else PATIENCE_S, times=3)
            if told is None:
                break  # who hung up asks something else next time
            if self.repeat_p and chance.random() < self.repeat_p:
                again = await self._insist("/v1/chat/completions", asked, PATIENCE_S, times=1)
                self._world.chaos.hits["question repeated"] += again is not None
                ids += [told[0]] if again is not None and chance.random() < 0.5 else []
                told = again or told
            while self.branch_p and chance.random() < self.branch_p:
                numbers = (str(chance.randint(0, 99)) for _ in range(chance.randint(1, 25)))
                other = {"role": "user", "content": f"{'+'.join(numbers)}="}
                branch = {"messages": [*messages[:-1], other], "stream": False}
                aside = await self._insist("/v1/chat/completions", branch, PATIENCE_S, times=1)
                self._world.chaos.hits["conversation branched"] += aside is not None
                ids += [aside[0]] if aside is not None else []
            id, text = told
            ids.append(id)
            messages.append({"role": "assistant", "content": text})
        if not ids or self._over:
            return False
        self._rewards += 1
        reward = float(self._rewards)
        said = {"reward": reward, "msg_ids": ids, "task_id": task}
        for _ in range(1000 if self._calm() else chance.randint(1, 6)):
            if await self._judge(said):
                self.told.judged.append(Judged(task, reward, frozenset(ids)))
                if chance.random() < 0.2:
                    await self._again(said)
                return True
            if self._over:
                return False
            await asyncio.sleep(0.5)
        return False

    async def _judge(self, said: dict[str, Any]) -> bool:
        try:
            status, body = await self.network.anybody("POST", "/feedback", said)
        except GoneError:
            return False
        if status not in (200, 503):
            self.told.broken.append(f"feedback for {said['msg_ids']} was answered {status}: {body!r}")
        return status == 200

    async def _again(self, said: dict[str, Any]) -> None:
        """The same again changes nothing, and says so; anything else is refused."""
        same = self._chance.random() < 0.5
        try:
            status, body = await self.network.anybody("POST", "/feedback", said if same else {**said, "reward": -1.0})
        except GoneError:
            return
        right = (status, json.loads(body).get("recorded")) == (200, False) if same else status == 409
        if not right and status != 503:
            self.told.broken.append(f"feedback that was given before was answered {status}: {body!r}")

    async def _commit(self) -> bool:
        known = frozenset(each.reward for each in self.told.judged)
        try:
            status, body = await self.network.anybody("POST", "/commit", None)
        except GoneError:
            return False
        if status != 200:
            if status != 503:
                self.told.broken.append(f"a commit was answered {status}: {body!r}")
            return False
        self.told.commits.append(CommitTold(known, json.loads(body)["committed"]))
        self._world.chaos.hits["committed"] += json.loads(body)["groups"]
        return True

    async def _insist(self, path: str, said: Any, patience_s: float, *, times: int) -> tuple[str, str] | None:
        """The id and the text of an answer."""
        for _ in range(times):
            try:
                status, body = await self.network.anybody("POST", path, said, patience_s)
            except GoneError:
                self._world.chaos.hits["hung up"] += 1
                await asyncio.sleep(0.3)
                continue
            if status == 200:
                return _read(body, stream=said["stream"])
            if status not in (502, 503, 504):
                self.told.broken.append(f"a question was answered {status}: {body!r}")
            await asyncio.sleep(0.5)
        return None

    async def _watch(self) -> None:
        """Whoever could answer once can answer until it leaves: new weights take no engine out of service."""
        while not self._over:
            await asyncio.sleep(0.2)
            for port in [each for each in self.network.ports if each.app is not None and each.process.running]:
                try:
                    status, body = await self.network.ask(port, "GET", "/health", None, PATIENCE_S)
                except GoneError:
                    continue
                if port.was_healthy and status != 200 and port.app is not None:
                    self.told.broken.append(f"{port.process.name} could answer, and cannot any more: {body!r}")
                port.was_healthy = port.was_healthy or status == 200


def _read(body: bytes, *, stream: bool) -> tuple[str, str]:
    if not stream:
        told = json.loads(body)
        return told["id"], told["choices"][0]["message"]["content"]
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    pieces = (choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    return events[0]["id"], "".join(pieces)
