"""`ModelEndpoint`: the HTTP server of an explorer, and a capability for each rollout that asks for one.

It listens on loopback from the first rollout on. A key is random, is known to one rollout's program, opens that
rollout's calls and no others, and opens nothing once the rollout is over. It is kept as a digest, and never logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import RolloutError
from rftd.ops.http_server import bind, serving_http, url_of
from rftd.ops.logs import logger
from rftd.ops.redaction import Secret
from rftd.workers.rollout.endpoint.anthropic_messages import MessagesCall
from rftd.workers.rollout.endpoint.call_error import CallError, bug_in_rftd
from rftd.workers.rollout.endpoint.chat_completions import ChatCall
from rftd.workers.rollout.endpoint.completions import CompletionCall
from rftd.workers.rollout.endpoint.http_call import HttpCall
from rftd.workers.rollout.endpoint.question import Answered, Question, digest_of
from rftd.workers.rollout.endpoint.responses import ResponsesCall
from rftd.workers.rollout.endpoint.rollout_calls import CallBounds, ModelCall, Repetition, RolloutCalls
from rftd.workers.rollout.model import Model
from rftd.workers.rollout.response import Response
from rftd.workers.rollout.rewards.reward import RewardResult
from rftd.workers.rollout.workflows.result import RolloutResult

T = TypeVar("T")

QUESTIONS: Final[dict[str, Callable[[bytes], Question]]] = {
    "/v1/chat/completions": ChatCall.read,
    "/v1/completions": CompletionCall.read,
    "/v1/responses": ResponsesCall.read,
    "/v1/messages": MessagesCall.read,
}
MODELS: Final = "/v1/models"
KEY_SIZE_BYTES: Final = 32
_UNKNOWN: Final = re.compile(r"unknown field `([^`]+)`")
READ_ON_LOOP_SIZE_BYTES: Final = 256 * 1024
"""A larger body is decoded on a thread, for it would hold up every other rollout."""


class ServedModel:
    """A model over HTTP, for one rollout and while the block runs: `async with model.served() as served`."""

    def __init__(self, endpoint: ModelEndpoint, model: Model, bounds: CallBounds, *, lengths_only: bool) -> None:
        self._endpoint = endpoint
        self._asked = (model, bounds, lengths_only)
        self._calls: RolloutCalls | None = None
        self._key = Secret("")

    async def __aenter__(self) -> Self:
        model, bounds, lengths_only = self._asked
        endpoint = self._endpoint
        self._calls, self._key = await endpoint.here(endpoint.open(model, bounds, lengths_only=lengths_only))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._endpoint.here(self._endpoint.end(self._key, self._opened))

    @property
    def base_url(self) -> str:
        """What clients call the base URL, with its `/v1`."""
        return self._endpoint.base_url

    @property
    def api_key(self) -> str:
        """The key of this rollout."""
        return self._key.reveal()

    @property
    def turns(self) -> Sequence[Response]:
        """The answers of the conversation that was asked last, for rewards; empty if nothing was asked."""
        return self._opened.record.turns

    @property
    def failure(self) -> RolloutError | None:
        """Why the model could not answer the newest call; None if it did, or the prompt did not fit."""
        return self._opened.failure

    @property
    def cut(self) -> Response | None:
        """The response to the newest prompt if that did not fit."""
        return self._opened.cut

    def results(self, reward: RewardResult, *, cut: Response | None = None) -> list[RolloutResult]:
        """All that was drawn, with this reward, as steps of a rollout: what a workflow returns.

        `cut` is given where the rollout ended with a prompt that did not fit, and earns nothing.
        """
        return self._opened.record.results(reward, cut=cut)

    @property
    def _opened(self) -> RolloutCalls:
        assert self._calls is not None, "use `async with model.served()`"
        return self._calls


class ModelEndpoint:
    """Serves models of rollouts. Made on the event loop that it runs on; rollouts may be on other threads."""

    def __init__(self, *, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` gives so many bytes that nobody can guess."""
        self.base_url = ""
        """The address, once a rollout has asked for it."""
        self._clock = clock
        self._random_bytes = random_bytes
        self._loop = asyncio.get_running_loop()
        self._wanted = asyncio.Event()
        self._up = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._rollouts: dict[bytes, RolloutCalls] = {}
        """By the digest of the key, so that looking one up takes as long whatever its characters are."""

    async def run(self) -> None:
        """Serves until it is cancelled."""
        await self._wanted.wait()
        bound = bind("127.0.0.1", 0)
        async with serving_http(self, bound, keep_alive_s=limits.ENDPOINT_KEEP_ALIVE_S), asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self.base_url = url_of(bound) + "/v1"
            self._up.set()
            await asyncio.Event().wait()

    def of(self, model: Model, bounds: CallBounds | None = None, *, lengths_only: bool = False) -> ServedModel:
        """A capability for the rollout that `model` is of; `Model.served` says more."""
        return ServedModel(self, model, bounds or CallBounds(), lengths_only=lengths_only)

    async def here(self, work: Coroutine[Any, Any, T]) -> T:
        """Does the work on the endpoint's loop, whichever loop asks."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def open(self, model: Model, bounds: CallBounds, *, lengths_only: bool) -> tuple[RolloutCalls, Secret]:
        """The calls of a new capability, and its key."""
        self._wanted.set()
        await self._up.wait()
        assert self._tasks is not None
        calls = RolloutCalls(model, bounds, lengths_only=lengths_only, tasks=self._tasks, clock=self._clock)
        key = "sk-rftd-" + urlsafe_b64encode(self._random_bytes(KEY_SIZE_BYTES)).decode().rstrip("=")
        self._rollouts[_digest(key.encode())] = calls
        return calls, Secret(key)

    async def end(self, key: Secret, calls: RolloutCalls) -> None:
        """Ends a capability: what is under way is cancelled, and its key opens nothing."""
        self._rollouts.pop(_digest(key.reveal().encode()), None)
        await calls.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request (ASGI)."""
        if scope["type"] != "http":
            return
        http = HttpCall(scope, receive, send)
        try:
            await self._answer(http)
        except CallError as error:
            await http.refuse(error)
        except Exception as bug:
            # The details stay in the log: a traceback in an answer would tell the agent of our files.
            logger().error("endpoint.bug", path=http.path, error=repr(bug), exc_info=bug)
            await http.refuse(bug_in_rftd())

    async def _answer(self, http: HttpCall) -> None:
        # Whoever may not ask is told so first, whatever the path and the body.
        calls = self._rollouts.get(_digest(http.key))
        if calls is None:
            raise _no_rollout()
        path = http.path.rstrip("/")
        body = await http.body()
        if http.method == "GET" and (path == MODELS or path.startswith(MODELS + "/")):
            await http.answer(_models(calls.model, path))
            return
        read = QUESTIONS.get(path)
        if read is None or http.method != "POST":
            raise CallError(404, f"there is no {http.method} {http.path}", reason="unknown_url")
        large = len(body) > READ_ON_LOOP_SIZE_BYTES
        question = await asyncio.to_thread(_read, read, body) if large else _read(read, body)
        call = calls.enter(question, _repetition(path, body, http.headers))
        outcome = await self._outcome(calls, call, http)
        if outcome is None:
            return  # nobody is there
        if isinstance(outcome, CallError):
            raise outcome
        calls.deliver(call, outcome)
        if call.question.stream:
            await http.stream(call.question.events(outcome))
        else:
            await http.answer(call.question.whole(outcome))

    async def _outcome(self, calls: RolloutCalls, call: ModelCall, http: HttpCall) -> Answered | CallError | None:
        """What came of the call; None if the client hung up first."""
        assert self._tasks is not None
        assert call.task is not None
        call.waiting += 1
        hang_up = self._tasks.create_task(http.hung_up())
        try:
            await asyncio.wait([call.task, hang_up], return_when=asyncio.FIRST_COMPLETED)
            if hang_up.done():
                return None
        finally:
            hang_up.cancel()
            calls.leave(call)
        return _no_rollout() if call.task.cancelled() else call.task.result()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _no_rollout() -> CallError:
    # The same whether the key was one before: what a key opened is nobody's business.
    return CallError(401, "this key belongs to no rollout that is under way", reason="invalid_api_key")


def _repetition(path: str, body: bytes, headers: Mapping[bytes, bytes]) -> Repetition:
    return Repetition(
        digest_of(path.encode(), body),
        headers.get(b"idempotency-key", b"").decode("latin-1"),
        headers.get(b"x-stainless-retry-count", b"0") != b"0",
    )


def _read(read: Callable[[bytes], Question], body: bytes) -> Question:
    """The question in a body. Raises CallError, whatever the body is."""
    try:
        return read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        what, _, place = str(error).partition(" - at `$")
        unknown = _UNKNOWN.search(what)
        param = place.rstrip("`").lstrip(".") or (unknown[1] if unknown else None)
        raise CallError(400, what, param=param, reason="unknown_parameter" if unknown else None) from None
    except RecursionError:
        raise CallError(400, "the body is nested too deeply") from None


def _models(model: Model, path: str) -> bytes:
    """The list of the one model, or the model of that name, for it answers to any."""
    name = path.removeprefix(MODELS).lstrip("/")
    listed = {"id": name or model.name, "object": "model", "created": 0, "owned_by": "rftd"}
    return msgspec.json.encode(listed if name else {"object": "list", "data": [listed]})
