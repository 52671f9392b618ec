"""`ConversationServer`: the endpoint's APIs for clients, and the clients' feedback on answers.

An answer is on disk before the client has all of it, feedback and commits before they are acknowledged.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from starlette.types import Receive, Scope, Send

from rftd.ops import limits
from rftd.ops.bound_socket import bind, url_of
from rftd.ops.clock import Clock
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import ConfigError, ConflictError, DataError, DiskFullError, NotFoundError, RftdError
from rftd.ops.http_server import serving_http
from rftd.ops.logs import logger
from rftd.ops.redaction import Secret
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.spec.engines import SERVE_KEY
from rftd.streams.spec.spec import SamplingSpec, StageSpec
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.endpoint.api_call import Answered, ApiCall
from rftd.workers.generation.endpoint.call_error import SERVER, CallError, bug_in_rftd, refusal
from rftd.workers.generation.endpoint.call_reply import call_of, decoded, models_of, names_models, reply
from rftd.workers.generation.endpoint.completions import TextQuestion
from rftd.workers.generation.endpoint.http_call import HttpCall
from rftd.workers.generation.endpoint.request_span import RequestSpan
from rftd.workers.generation.endpoint.rollout_calls import Repetition, RolloutCalls
from rftd.workers.generation.endpoint.turn_record import RecordedTurn, TurnRecord
from rftd.workers.generation.engine import RolloutEngine
from rftd.workers.generation.model import CallBounds, Model
from rftd.workers.rollout.rollouts import RolloutPlaces
from rftd.workers.rollout.serving.conversations import Conversations
from rftd.workers.rollout.serving.history import BY_IDS, Feedback, History, KeptAnswer
from rftd.workers.rollout.version_gate import UseKind, VersionGate, WeightsUse

_STATUS: Final[tuple[tuple[type[RftdError], int], ...]] = ((NotFoundError, 404), (ConflictError, 409))
"""HTTP status of each class of errors; 400 for others."""


class FeedbackBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /feedback`: a reward, and the ids of the answers it is for."""

    reward: float
    """Reward of the run formed by the answers; a number up to `REWARD_LARGEST` in size."""
    msg_ids: list[str]
    """Ids of the answers."""
    task_id: str | int | None = None
    """Name of the task; None: a task with this run only."""
    run_id: str | int | None = None
    """Name of the run; None: named by its answers."""

    def checked(self) -> Feedback:
        """Returns the feedback with ids as text. Raises CallError (400) for a reward or ids out of bounds."""
        if not abs(self.reward) <= limits.REWARD_LARGEST:
            message = f"reward is {self.reward}; it must be a number up to {limits.REWARD_LARGEST:g}"
            raise CallError(400, message, param="reward")
        if not 1 <= len(self.msg_ids) <= limits.ENDPOINT_CALLS:
            message = f"msg_ids names {len(self.msg_ids)} answers; it must name 1 to {limits.ENDPOINT_CALLS}"
            raise CallError(400, message, param="msg_ids")
        names = ["" if name is None else str(name) for name in (self.task_id, self.run_id)]
        if max(map(len, (*names, *self.msg_ids))) > 256:
            raise CallError(400, "an id has more than 256 characters", param="task_id")
        return Feedback(reward=self.reward, answers=tuple(self.msg_ids), task=names[0], run=names[1])


class KeptTurn(RecordedTurn):
    """A turn stored in the history under an id."""

    def __init__(self, answer: KeptAnswer) -> None:
        """Takes response and id from a stored answer."""
        super().__init__(answer.response, None)
        self.id = answer.id
        """Id of the stored answer."""


class KeptTurns(TurnRecord):
    """The turns of all conversations, looked up in the history."""

    def __init__(self, history: History) -> None:
        """Turns are looked up in `history`."""
        super().__init__()
        self._history = history

    def find(self, key: bytes) -> RecordedTurn | None:
        """Returns the newest turn with this key; None without one."""
        answer = self._history.find(key)
        return None if answer is None else KeptTurn(answer)


class ConversationServer:
    """Serves OpenAI's APIs to clients with the current weights, and stores answers, feedback and commits in the
    history.
    """

    def __init__(
        self,
        stage: StageSpec,
        conversations: Conversations,
        engine: RolloutEngine,
        tokenizer: Tokenizer,
        *,
        gate: VersionGate,
        places: RolloutPlaces,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        tracer: Tracer | None = None,
    ) -> None:
        """Raises ConfigError for an address other machines can reach without a key, ConflictError for a port in use.

        Several explorers of a stage listen on one port.
        """
        spec = stage.serving
        assert spec is not None
        key = os.environ.get(SERVE_KEY, "")
        if not key and not ip_address(spec.address).is_loopback:
            raise ConfigError(
                f"{spec.address} can be reached from other machines, and there is no key",
                field="explorer.listen_address",
                fix=f"set {SERVE_KEY} where the explorer runs, or write 127.0.0.1",
            )
        self._key = Secret(key) if key else None
        """Key required of clients; None: none."""
        try:
            self._bound = bind(spec.address, spec.port, shared=stage.rollout.explorers > 1)
        except ConflictError as error:
            fix = "stop the program that listens there, or choose another port"
            raise ConflictError(error.what, field="explorer.proxy_port", fix=fix) from error
        self._conversations = conversations
        self._history = conversations.history
        """Stored answers and feedback."""
        self._stage = stage
        self._engine = engine
        self._tokenizer = tokenizer
        self._gate = gate
        self._places = places
        self._timeout_s = stage.rollout.max_timeout_s
        """Time limit of an answer in seconds."""
        self._clock = clock
        self._random_bytes = random_bytes
        self._tracer = tracer
        self._calls = 0
        """Number of answers being sampled, counted over the choices of all calls."""
        self._tasks: asyncio.TaskGroup | None = None
        """Group of the tasks of answers; None outside of `run`."""
        self.url = url_of(self._bound)
        """Address of the server."""
        self.up = asyncio.Event()
        """Event set once the server accepts requests."""
        self._refused: asyncio.Future[None] | None = None
        """Future failed by the error after which no request may be acknowledged any more."""

    async def run(self) -> None:
        """Serves until cancelled. Raises DataError once the history is not the one promised in the log."""
        self._refused = asyncio.get_running_loop().create_future()
        try:
            await self._conversations.offer_again()
            await asyncio.to_thread((self._history.path.parent / "url").write_text, self.url + "\n")
            logger().info("serving.listens", url=self.url)
            # The group is the outer one: requests under way at its exit still need it.
            async with (
                asyncio.TaskGroup() as tasks,
                serving_http(self, self._bound, keep_alive_s=limits.ENDPOINT_KEEP_ALIVE_S, refusal=refusal),
            ):
                self._tasks = tasks
                self.up.set()
                await self._refused
        finally:
            self._bound.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request (ASGI), with refusals in the form of OpenAI's API."""
        if scope["type"] != "http":
            return
        http = HttpCall(scope, receive, send)
        try:
            self._admit(http)
            await RequestSpan(http, self._tracer, None).around(self._route(http))
        except CallError as error:
            await http.refuse(error)
        except RftdError as error:
            await http.refuse(await self._refusal_of(error))
        except Exception as bug:
            # The details stay in the log: a traceback in an answer would show our files to a stranger.
            logger().error("serving.bug", path=http.path, error=repr(bug), exc_info=bug)
            await http.refuse(bug_in_rftd())

    async def _refusal_of(self, error: RftdError) -> CallError:
        """Returns the error in the form of OpenAI's API; a history other than the promised one ends the server."""
        if not isinstance(error, DataError):
            return _call_error(error)
        try:
            await self._conversations.check()
        except RftdError as lost:
            assert self._refused is not None
            logger().error("serving.refuses", error=str(lost))
            if not self._refused.done():
                self._refused.set_exception(lost)
            message = "the history of conversations is not the one that was promised; nothing of this was kept"
            return CallError(503, message, kind=SERVER, reason=error.code)
        return _call_error(error)

    def _admit(self, http: HttpCall) -> None:
        """Raises CallError for a page of another origin, a foreign host or a wrong key."""
        host = http.headers.get(b"host", b"").decode("latin-1")
        origin = http.headers.get(b"origin")
        # A page in a browser must not use a server meant for its user alone: its requests name their origin, or, if its
        # name was pointed at this address, another host.
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
            raise CallError(403, "a page of another origin may not use this server", reason="forbidden_origin")
        if self._key is None:
            if not _is_own(urlsplit(f"//{host}").hostname or ""):
                raise CallError(403, f"this server does not serve the host {host!r}", reason="forbidden_host")
        # In constant time, whatever the position of the key's first wrong character.
        elif http.path != "/health" and not hmac.compare_digest(http.key, self._key.reveal().encode()):
            raise CallError(401, "no valid key", reason="invalid_api_key")

    async def _route(self, http: HttpCall) -> None:
        """Passes a request to the function for its path."""
        routes: dict[tuple[str, str], Callable[[HttpCall], Awaitable[None]]] = {
            ("POST", "/feedback"): self._take_feedback,
            ("POST", "/commit"): self._take_commit,
            ("GET", "/health"): self._report_health,
            ("GET", "/metrics"): self._report_metrics,
        }
        route = routes.get(
            (http.method, http.path.rstrip("/")), self._list_models if names_models(http) else self._answer_call
        )
        await route(http)

    async def _answer_call(self, http: HttpCall) -> None:
        """Answers a call for completions, within the limit of concurrent answers."""
        call = await call_of(http, await http.body())
        choices = call.question.choices
        if self._calls + choices > limits.SERVED_CALLS:
            message = f"{self._calls} answers are being sampled; the limit is {limits.SERVED_CALLS}"
            raise CallError(429, message, kind="requests", reason="rate_limit_exceeded")
        if self._gate.version < 0:
            raise CallError(503, "there are no weights yet", kind=SERVER, reason="no_weights")
        try:
            await self._reply_with_answer(call, http)
        except CallError as error:
            # The engine failed, and not this server, whose own bugs have a reason.
            if error.status == 500 and error.reason is None:
                raise CallError(502, error.what, kind=SERVER) from error
            raise

    async def _reply_with_answer(self, api_call: ApiCall, http: HttpCall) -> None:
        """Replies with the answer, stored before the client has all of it. Raises RftdError."""
        assert self._tasks is not None
        bounds = CallBounds()
        model = self._new_model()
        calls = RolloutCalls(
            model, bounds, lengths_only=False, tasks=self._tasks, clock=self._clock, draw_block=self._wait_for_slot
        )
        calls.record = KeptTurns(self._history)
        choices = api_call.question.choices

        def over(_: object) -> None:
            self._calls -= choices

        async def keep(answered: Answered) -> None:
            await asyncio.to_thread(self._history.record, _answers_of(api_call, answered))

        try:
            call = calls.enter(api_call, Repetition(b""))
            assert call.task is not None
            self._calls += choices
            call.task.add_done_callback(over)
            leaving = CallError(503, "this engine is about to leave", kind=SERVER, reason="leaving")
            await reply(http, calls, call, keep, ended=leaving)
        finally:
            await calls.end()

    @asynccontextmanager
    async def _wait_for_slot(self) -> AsyncIterator[None]:
        """Waits for a slot among the engine's requests; the time-out of an answer includes this wait."""
        try:
            use = WeightsUse(UseKind.ROLLOUT, version=0)
            async with asyncio.timeout(self._timeout_s), self._gate.using(use):
                count = await self._places.take(1)
                try:
                    yield
                finally:
                    self._places.give_back(count)
        except TimeoutError:
            message = f"no answer within {self._timeout_s:g} s"
            raise CallError(504, message, kind=SERVER, reason="timeout") from None

    def _new_model(self) -> Model:
        """Returns the model for a new call, with an unguessable id: knowing the id is enough to judge the answer."""
        taskset = self._stage.taskset
        sampling = taskset.sampling if taskset is not None else SamplingSpec()
        id = UUID(bytes=self._random_bytes(16), version=4)
        return Model(self._engine, self._tokenizer, spec=self._stage.model, sampling=sampling, rollout=id)

    async def _take_feedback(self, http: HttpCall) -> None:
        """Stores feedback, and replies whether the feedback is new."""
        feedback = decoded(json_decoder(FeedbackBody).decode, await http.body()).checked()
        new = await asyncio.to_thread(self._history.judge, feedback)
        await http.answer(msgspec.json.encode({"status": "success", "recorded": new}))

    async def _take_commit(self, http: HttpCall) -> None:
        """Commits runs with feedback, and replies with the numbers of committed, grouped and waiting runs."""
        await http.body()
        done = await self._conversations.commit(self._stage.algorithm.repeat_times)
        summary = {"status": "success", "committed": done.runs, "groups": done.groups, "waiting": done.waiting}
        await http.answer(msgspec.json.encode(summary))

    async def _list_models(self, http: HttpCall) -> None:
        """Replies with the list of models."""
        await http.answer(models_of(self._new_model(), http))

    async def _report_health(self, http: HttpCall) -> None:
        """Replies with the weight version. Raises CallError before the first weights."""
        version = self._gate.version
        if version < 0:
            raise CallError(503, "there are no weights yet", kind=SERVER, reason="no_weights")
        await http.answer(msgspec.json.encode({"status": "ok", "version": version}))

    async def _report_metrics(self, http: HttpCall) -> None:
        """Replies with gauges in Prometheus's format."""
        gauges = await asyncio.to_thread(self._history.counts)
        gauges |= {"calls_running": self._calls, "weights_version": self._gate.version}
        lines = [f"# TYPE rftd_serving_{name} gauge\nrftd_serving_{name} {gauge}\n" for name, gauge in gauges.items()]
        await http.answer("".join(lines).encode(), media_type=b"text/plain; version=0.0.4; charset=utf-8")


def _answers_of(call: ApiCall, answered: Answered) -> list[KeptAnswer]:
    """Returns the answers of a call, by the id known to the client; further choices have their number appended."""
    parent = answered.prompt.parent
    before = parent.id if isinstance(parent, KeptTurn) else ""
    if isinstance(call.question, TextQuestion):
        before = BY_IDS
    return [
        KeptAnswer(
            id=call.id_of(answered) + (f"-{number}" if number else ""),
            key=call.question.key_after(answered.prompt, response),
            parent=before,
            response=response,
        )
        for number, response in enumerate(answered.responses)
    ]


def _call_error(error: RftdError) -> CallError:
    """Returns the error in the form of OpenAI's API."""
    message = f"{error.what}; {error.fix}" if error.fix else error.what
    if isinstance(error, DiskFullError):
        return CallError(507, message, kind=SERVER, reason=error.code)
    if isinstance(error, DataError):
        logger().error("serving.history", error=str(error))
        return CallError(500, "the history of conversations cannot be read", kind=SERVER, reason=error.code)
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
    return CallError(status, message, reason=error.code, param=error.field)


def _is_own(host: str) -> bool:
    """True for a name or an address of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
