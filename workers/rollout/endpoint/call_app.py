"""`CallApp`: the HTTP API (ASGI) over the calls that a key opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.types import Receive, Scope, Send

from rftd.ops.logs import logger
from rftd.ops.tracing.tracer import Tracer
from rftd.workers.rollout.endpoint.api_call import Answered
from rftd.workers.rollout.endpoint.call_error import CallError, bug_in_rftd
from rftd.workers.rollout.endpoint.call_reply import call_of, models_of, names_models, reply
from rftd.workers.rollout.endpoint.http_call import HttpCall
from rftd.workers.rollout.endpoint.question import digest_of
from rftd.workers.rollout.endpoint.request_span import RequestSpan
from rftd.workers.rollout.endpoint.rollout_calls import Repetition, RolloutCalls


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
