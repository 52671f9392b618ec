"""`ModelEndpoint`: the HTTP server of an explorer, and a capability for each rollout that asks for one.

It listens on loopback from the first rollout on. A key is random, is known to one rollout's program, opens that
rollout's calls and no others, and opens nothing once the rollout is over. It is kept as a digest, and never logged.
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

from starlette.types import Receive, Scope, Send

from rftd.ops import limits
from rftd.ops.bound_socket import bind, url_of
from rftd.ops.clock import Clock
from rftd.ops.errors import RolloutError
from rftd.ops.http_server import serving_http
from rftd.ops.logs import logger
from rftd.ops.redaction import Secret
from rftd.ops.tracing.tracer import Tracer, TraceSpan, current
from rftd.workers.generation.endpoint.api_call import Answered
from rftd.workers.generation.endpoint.call_error import CallError, bug_in_rftd, refusal
from rftd.workers.generation.endpoint.call_reply import call_of, models_of, names_models, reply
from rftd.workers.generation.endpoint.http_call import HttpCall
from rftd.workers.generation.endpoint.question import digest_of
from rftd.workers.generation.endpoint.request_span import RequestSpan
from rftd.workers.generation.endpoint.rollout_calls import Repetition, RolloutCalls
from rftd.workers.generation.model import CallBounds, Model
from rftd.workers.generation.response import Response
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult

T = TypeVar("T")

KEY_SIZE_BYTES: Final = 32


class CallApp:
    """Answers requests. All of it happens on one event loop."""

    def __init__(self, calls_of: Callable[[bytes], RolloutCalls], tracer: Tracer | None = None) -> None:
        """`calls_of` gives what a key opens, and raises CallError if it opens nothing."""
        self._calls_of = calls_of
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
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
        calls = self._calls_of(http.key)
        await RequestSpan(http, self._tracer, calls.span).around(self._reply(http, calls))

    async def _reply(self, http: HttpCall, calls: RolloutCalls) -> None:
        body = await http.body()
        if names_models(http):
            await http.answer(models_of(calls.model, http))
            return
        asked = await call_of(http, body)
        call = calls.enter(asked, _repetition(http.path.rstrip("/"), body, http.headers))

        async def deliver(answered: Answered) -> None:
            calls.deliver(call, answered)

        await reply(http, calls, call, deliver, ended=no_rollout())


def no_rollout() -> CallError:
    """The error of a key that opens nothing: the same whether it did before, for that is nobody's business."""
    return CallError(401, "this key belongs to no rollout that is under way", reason="invalid_api_key")


def _repetition(path: str, body: bytes, headers: Mapping[bytes, bytes]) -> Repetition:
    return Repetition(
        digest_of(path.encode(), body),
        headers.get(b"idempotency-key", b"").decode("latin-1"),
        headers.get(b"x-stainless-retry-count", b"0") != b"0",
        len(body),
    )


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
        # Asked here: on the endpoint's loop another span is open, or none.
        opening = endpoint.open(model, bounds, lengths_only=lengths_only, span=current())
        self._calls, self._key = await endpoint.here(opening)
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

    def __init__(self, *, clock: Clock, random_bytes: Callable[[int], bytes], tracer: Tracer | None = None) -> None:
        """`random_bytes` gives so many bytes that nobody can guess. A caller's trace goes on by the `tracer`."""
        self._tracer = tracer
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
        app = CallApp(self.calls_of, self._tracer)
        # The group is the outer one: requests under way when the endpoint ends still need it.
        async with (
            asyncio.TaskGroup() as tasks,
            serving_http(app, bound, keep_alive_s=limits.ENDPOINT_KEEP_ALIVE_S, refusal=refusal),
        ):
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

    async def open(
        self, model: Model, bounds: CallBounds, *, lengths_only: bool, span: TraceSpan | None = None
    ) -> tuple[RolloutCalls, Secret]:
        """The calls of a new capability, and its key. `span` is that of the rollout, where it is traced."""
        self._wanted.set()
        await self._up.wait()
        assert self._tasks is not None
        calls = RolloutCalls(model, bounds, lengths_only=lengths_only, tasks=self._tasks, clock=self._clock, span=span)
        key = "sk-rftd-" + urlsafe_b64encode(self._random_bytes(KEY_SIZE_BYTES)).decode().rstrip("=")
        self._rollouts[_digest(key.encode())] = calls
        return calls, Secret(key)

    async def end(self, key: Secret, calls: RolloutCalls) -> None:
        """Ends a capability: what is under way is cancelled, and its key opens nothing."""
        self._rollouts.pop(_digest(key.reveal().encode()), None)
        await calls.end()

    def calls_of(self, key: bytes) -> RolloutCalls:
        """The calls that a key opens. Raises CallError if it opens none."""
        calls = self._rollouts.get(_digest(key))
        if calls is None:
            raise no_rollout()
        return calls


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
