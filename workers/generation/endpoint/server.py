"""`ModelEndpoint`: the HTTP server of an explorer, with a capability for each rollout that needs one.

The server listens on loopback from the first such rollout on. A key is random, known to one rollout's program, opens
that rollout's calls alone, and is invalid once the rollout is over. Only its digest is stored, and it is never logged.
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
"""Type of the work's outcome."""

KEY_SIZE_BYTES: Final = 32
"""Random bytes of a key."""


class CallApp:
    """ASGI application for model calls. Everything runs on one event loop."""

    def __init__(self, calls_of: Callable[[bytes], RolloutCalls], tracer: Tracer | None = None) -> None:
        """`calls_of` returns the calls for a key, and raises CallError for an invalid key."""
        self._calls_of = calls_of
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        http = HttpCall(scope, receive, send)
        try:
            await self._answer_in_span(http)
        except CallError as error:
            await http.refuse(error)
        except Exception as bug:
            # The details stay in the log: a traceback in an answer would show the agent this project's files.
            logger().error("endpoint.bug", path=http.path, error=repr(bug), exc_info=bug)
            await http.refuse(bug_in_rftd())

    async def _answer_in_span(self, http: HttpCall) -> None:
        # The key is checked first, whatever the path and the body.
        """Answers a request with a valid key, within the request's span. Raises CallError."""
        calls = self._calls_of(http.key)
        await RequestSpan(http, self._tracer, calls.span).around(self._reply_to(http, calls))

    async def _reply_to(self, http: HttpCall, calls: RolloutCalls) -> None:
        """Replies to a request for an answer or for the list of models."""
        body = await http.body()
        if names_models(http):
            await http.answer(models_of(calls.model, http))
            return
        api_call = await call_of(http, body)
        call = calls.enter(api_call, _repetition_of(http.path.rstrip("/"), body, http.headers))

        async def deliver(answered: Answered) -> None:
            calls.deliver(call, answered)

        await reply(http, calls, call, deliver, ended=no_rollout())


def no_rollout() -> CallError:
    """Returns the error for an invalid key, the same for unknown keys and for keys of ended rollouts."""
    return CallError(401, "this key belongs to no active rollout", reason="invalid_api_key")


def _repetition_of(path: str, body: bytes, headers: Mapping[bytes, bytes]) -> Repetition:
    """Returns the marks by which a repeated request is recognised."""
    return Repetition(
        digest_of(path.encode(), body),
        headers.get(b"idempotency-key", b"").decode("latin-1"),
        headers.get(b"x-stainless-retry-count", b"0") != b"0",
        len(body),
    )


class ServedModel:
    """A model over HTTP, for one rollout and the duration of a block: `async with model.served() as served`."""

    def __init__(self, endpoint: ModelEndpoint, model: Model, bounds: CallBounds, *, lengths_only: bool) -> None:
        """`lengths_only`: a call may change lengths and stops, no other setting."""
        self._endpoint = endpoint
        self._parameters = (model, bounds, lengths_only)
        """Model, bounds and the restriction of settings."""
        self._calls: RolloutCalls | None = None
        """Calls of the rollout; None outside of the block."""
        self._key = Secret("")
        """Key of the rollout; empty outside of the block."""

    async def __aenter__(self) -> Self:
        model, bounds, lengths_only = self._parameters
        endpoint = self._endpoint
        # The span is read here: on the endpoint's loop another span is active, or none.
        opening = endpoint.open(model, bounds, lengths_only=lengths_only, span=current())
        self._calls, self._key = await endpoint.on_endpoint_loop(opening)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._endpoint.on_endpoint_loop(self._endpoint.end(self._key, self._open_calls))

    @property
    def base_url(self) -> str:
        """Base URL for clients, including `/v1`."""
        return self._endpoint.base_url

    @property
    def api_key(self) -> str:
        """Key of this rollout, valid until the block ends."""
        return self._key.reveal()

    @property
    def turns(self) -> Sequence[Response]:
        """Responses of the conversation with the newest call, for rewards; empty without calls."""
        return self._open_calls.record.turns

    @property
    def answers(self) -> Sequence[Response]:
        """All recorded responses, in the order of their recording."""
        return self._open_calls.record.answers

    @property
    def failure(self) -> RolloutError | None:
        """Reason why the newest call failed; None if the model answered or the prompt was too long."""
        return self._open_calls.failure

    @property
    def cut(self) -> Response | None:
        """Response to the newest prompt if the prompt was too long."""
        return self._open_calls.cut

    def results(self, reward: RewardResult, *, cut: Response | None = None) -> list[RolloutResult]:
        """Returns everything drawn as steps of a rollout with this reward, the return value of a workflow.

        `cut` is the response to an overlong prompt, if the rollout ended with one and earns nothing.
        """
        return self._open_calls.record.results(reward, cut=cut)

    @property
    def _open_calls(self) -> RolloutCalls:
        """Returns the calls of the rollout; only within the block."""
        assert self._calls is not None, "use `async with model.served()`"
        return self._calls


class ModelEndpoint:
    """Serves models of rollouts over HTTP. Made on its event loop; rollouts may run on other threads."""

    def __init__(self, *, clock: Clock, random_bytes: Callable[[int], bytes], tracer: Tracer | None = None) -> None:
        """`random_bytes` returns a number of unguessable bytes. The `tracer` continues a caller's trace."""
        self._tracer = tracer
        self.base_url = ""
        """Base URL of the server, once a rollout has opened a capability."""
        self._clock = clock
        self._random_bytes = random_bytes
        self._loop = asyncio.get_running_loop()
        """Event loop of the endpoint."""
        self._wanted = asyncio.Event()
        """Set at the first capability."""
        self._up = asyncio.Event()
        """Set once the server listens."""
        self._tasks: asyncio.TaskGroup | None = None
        """Group of the tasks of requests; None outside of `run`."""
        self._rollouts: dict[bytes, RolloutCalls] = {}
        """Calls by the digest of the key: a lookup takes equal time whatever the key's characters are."""

    async def run(self) -> None:
        """Serves on loopback from the first capability on, until cancelled."""
        await self._wanted.wait()
        bound = bind("127.0.0.1", 0)
        app = CallApp(self.calls_of, self._tracer)
        # The task group is the outer context: requests under way at the endpoint's end still need it.
        async with (
            asyncio.TaskGroup() as tasks,
            serving_http(app, bound, keep_alive_s=limits.ENDPOINT_KEEP_ALIVE_S, refusal=refusal),
        ):
            self._tasks = tasks
            self.base_url = url_of(bound) + "/v1"
            self._up.set()
            await asyncio.Event().wait()

    def of(self, model: Model, bounds: CallBounds | None = None, *, lengths_only: bool = False) -> ServedModel:
        """Returns a capability for the rollout of `model`; see `Model.served`."""
        return ServedModel(self, model, bounds or CallBounds(), lengths_only=lengths_only)

    async def on_endpoint_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the endpoint's loop, from whichever loop the caller is on."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def open(
        self, model: Model, bounds: CallBounds, *, lengths_only: bool, span: TraceSpan | None = None
    ) -> tuple[RolloutCalls, Secret]:
        """Opens access to a model for one rollout, and returns its calls and its key; `span` is the rollout's, if
        traced.

        With `lengths_only`, calls cannot change sampling settings other than lengths and stops.
        """
        self._wanted.set()
        await self._up.wait()
        assert self._tasks is not None
        calls = RolloutCalls(model, bounds, lengths_only=lengths_only, tasks=self._tasks, clock=self._clock, span=span)
        key = "sk-rftd-" + urlsafe_b64encode(self._random_bytes(KEY_SIZE_BYTES)).decode().rstrip("=")
        self._rollouts[_key_digest(key.encode())] = calls
        return calls, Secret(key)

    async def end(self, key: Secret, calls: RolloutCalls) -> None:
        """Ends access under a key: the key becomes invalid, and unanswered calls are cancelled."""
        self._rollouts.pop(_key_digest(key.reveal().encode()), None)
        await calls.end()

    def calls_of(self, key: bytes) -> RolloutCalls:
        """Returns the calls for a key. Raises CallError for an invalid key."""
        calls = self._rollouts.get(_key_digest(key))
        if calls is None:
            raise no_rollout()
        return calls


def _key_digest(key: bytes) -> bytes:
    """Returns the digest under which a key is stored."""
    return hashlib.sha256(key).digest()
