"""`CallApp`: the HTTP API (ASGI) over the calls that a key opens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from rftd.ops.logs import logger
from rftd.workers.rollout.endpoint.answer_stream import AnswerStream
from rftd.workers.rollout.endpoint.anthropic_messages import MessagesCall
from rftd.workers.rollout.endpoint.api_call import Answered, ApiCall
from rftd.workers.rollout.endpoint.call_error import CallError, bug_in_rftd
from rftd.workers.rollout.endpoint.chat_completions import ChatCall
from rftd.workers.rollout.endpoint.completions import CompletionCall
from rftd.workers.rollout.endpoint.http_call import HttpCall
from rftd.workers.rollout.endpoint.question import digest_of
from rftd.workers.rollout.endpoint.responses import ResponsesCall
from rftd.workers.rollout.endpoint.rollout_calls import ModelCall, Repetition, RolloutCalls
from rftd.workers.rollout.model import Model

T = TypeVar("T")

CALLS: Final[dict[str, Callable[[bytes], ApiCall]]] = {
    "/v1/chat/completions": ChatCall.read,
    "/v1/completions": CompletionCall.read,
    "/v1/responses": ResponsesCall.read,
    "/v1/messages": MessagesCall.read,
}
MODELS: Final = "/v1/models"
READ_ON_LOOP_SIZE_BYTES: Final = 256 * 1024
"""A larger body is decoded on a thread, for it would hold up every other rollout."""
_UNKNOWN: Final = re.compile(r"unknown field `([^`]+)`")


class CallApp:
    """Answers requests. All of it happens on one event loop."""

    def __init__(self, calls_of: Callable[[bytes], RolloutCalls]) -> None:
        """`calls_of` gives what a key opens, and raises CallError if it opens nothing."""
        self._calls_of = calls_of

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
        path = http.path.rstrip("/")
        body = await http.body()
        if http.method == "GET" and (path == MODELS or path.startswith(MODELS + "/")):
            await http.answer(_models(calls.model, path))
            return
        read = CALLS.get(path)
        if read is None or http.method != "POST":
            raise CallError(404, f"there is no {http.method} {http.path}", reason="unknown_url")
        large = len(body) > READ_ON_LOOP_SIZE_BYTES
        asked = await asyncio.to_thread(decoded, read, body) if large else decoded(read, body)
        call = calls.enter(asked, _repetition(path, body, http.headers))
        stream = AnswerStream(call, http) if call.asked.stream else None
        outcome = await self._outcome(calls, call, http, stream)
        if outcome is None:
            return  # nobody is there
        if isinstance(outcome, CallError):
            if stream is None or not http.replied:
                raise outcome
            await stream.fail(outcome)
        elif stream is not None:
            events = stream.finish(outcome)
            calls.deliver(call, outcome)
            await http.stream(events)
        else:
            calls.deliver(call, outcome)
            await http.answer(call.asked.whole(outcome))

    async def _outcome(
        self, calls: RolloutCalls, call: ModelCall, http: HttpCall, stream: AnswerStream | None
    ) -> Answered | CallError | None:
        """What came of the call; None if the client hung up first."""
        assert call.task is not None
        call.waiting += 1
        hang_up = calls.tasks.create_task(http.hung_up())
        try:
            if stream is None:
                await asyncio.wait([call.task, hang_up], return_when=asyncio.FIRST_COMPLETED)
            else:
                await stream.follow(hang_up)
            if hang_up.done():
                return None
        finally:
            hang_up.cancel()
            calls.leave(call)
        return no_rollout() if call.task.cancelled() else call.task.result()


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


def decoded(read: Callable[[bytes], T], body: bytes) -> T:
    """What `read` finds in a body. Raises CallError, whatever the body is."""
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
