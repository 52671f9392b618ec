"""The call made by a request, whichever the API, and the reply with its answer, whichever the server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

import msgspec

from rftd.workers.generation.endpoint.anthropic_messages import MessagesCall
from rftd.workers.generation.endpoint.api_call import Answered, AnswerEvents, ApiCall
from rftd.workers.generation.endpoint.call_error import CallError
from rftd.workers.generation.endpoint.chat_completions import ChatCall
from rftd.workers.generation.endpoint.completions import CompletionCall
from rftd.workers.generation.endpoint.http_call import HttpCall
from rftd.workers.generation.endpoint.responses import ResponsesCall
from rftd.workers.generation.endpoint.rollout_calls import ModelCall, RolloutCalls
from rftd.workers.generation.model import Model

T = TypeVar("T")
"""Type of a decoded body."""
Keep: TypeAlias = Callable[[Answered], Awaitable[None]]
"""An async function recording a complete answer, called before the client learns of its completion."""

CALLS: Final[dict[str, Callable[[bytes], ApiCall]]] = {
    "/v1/chat/completions": ChatCall.read,
    "/v1/completions": CompletionCall.read,
    "/v1/responses": ResponsesCall.read,
    "/v1/messages": MessagesCall.read,
}
"""Function decoding the body of a call, by the path of the request."""
MODELS: Final = "/v1/models"
"""Path of the list of models."""
READ_ON_LOOP_SIZE_BYTES: Final = 256 * 1024
"""Size above which a body is decoded on a thread, to avoid blocking the event loop."""
_UNKNOWN: Final = re.compile(r"unknown field `([^`]+)`")
"""The name of an unknown field in msgspec's message."""


class AnswerStream:
    """Streams a call's answer to one client from its first token on, however late the client came."""

    def __init__(self, call: ModelCall, http: HttpCall) -> None:
        """Streams the answer of `call` as the reply to `http`."""
        self._call = call
        self._http = http
        self._events: AnswerEvents | None = None
        """Writer of events; None before the answer begins."""
        self._sent = [0] * call.api_call.question.choices
        """Number of tokens of each choice already sent in events."""

    async def follow(self, hang_up: asyncio.Task[None]) -> None:
        """Sends the answer as it is drawn; returns when the answer is complete or has failed, or the client hung up."""
        news = asyncio.Event()
        news.set()  # tokens drawn before this client came
        task = self._call.task
        assert task is not None
        self._call.listeners.add(news.set)
        for ending in (hang_up, task):
            ending.add_done_callback(lambda _: news.set())
        try:
            while not task.done() and not hang_up.done():
                await news.wait()
                news.clear()
                # The end of a complete answer is sent by `finish`, after the answer was recorded.
                if not task.done() and not hang_up.done():
                    await self._send_drawn()
        finally:
            self._call.listeners.discard(news.set)

    def finish(self, answered: Answered) -> list[bytes]:
        """Returns the events still missing from a complete answer."""
        events = self._events or self._call.api_call.events(answered)
        return list(events.rest(answered))

    async def _send_drawn(self) -> None:
        """Sends the events of tokens drawn since the last call."""
        begun = self._call.begun
        if begun is None:
            return
        if self._events is None:
            self._events = self._call.api_call.events(begun)
        for index, (tokens, logprobs) in enumerate(self._call.drawn):
            sent = self._sent[index]
            if len(tokens) > sent:
                self._sent[index] = len(tokens)
                await self._http.push(self._events.drawn(index, tokens[sent:], logprobs[sent:]))


async def call_of(http: HttpCall, body: bytes) -> ApiCall:
    """Reads the call of a request. Raises CallError for a path outside the APIs, or a malformed body."""
    read = CALLS.get(http.path.rstrip("/"))
    if read is None or http.method != "POST":
        raise CallError(404, f"there is no {http.method} {http.path}", reason="unknown_url")
    large = len(body) > READ_ON_LOOP_SIZE_BYTES
    return await asyncio.to_thread(decoded, read, body) if large else decoded(read, body)


async def reply(http: HttpCall, calls: RolloutCalls, call: ModelCall, keep: Keep, *, ended: CallError) -> None:
    """Replies with the answer to a call, as it is drawn if a stream is requested; a client that hangs up cancels it.

    The whole answer, or a stream's last events, are sent once `keep` has returned. Raises CallError without an answer,
    equal to `ended` for a call cancelled elsewhere, and the errors of `keep`.
    """
    stream = AnswerStream(call, http) if call.api_call.stream else None
    answered = await _wait_for_answer(http, calls, call, stream, ended)
    if answered is None:
        return  # the client hung up
    # Encoded before it is recorded: an answer that cannot be sent must not be recorded.
    if stream is not None:
        events = stream.finish(answered)
        await keep(answered)
        await http.stream(events)
    else:
        whole = call.api_call.whole(answered)
        await keep(answered)
        await http.answer(whole)


async def _wait_for_answer(
    http: HttpCall, calls: RolloutCalls, call: ModelCall, stream: AnswerStream | None, ended: CallError
) -> Answered | None:
    """Waits for the answer; None if the client hung up first."""
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
    outcome = ended if call.task.cancelled() else call.task.result()
    if isinstance(outcome, CallError):
        raise outcome
    return outcome


def decoded(read: Callable[[bytes], T], body: bytes) -> T:
    """Decodes a body with `read`. Raises CallError for every malformed body."""
    try:
        return read(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem, _, path = str(error).partition(" - at `$")
        unknown = _UNKNOWN.search(problem)
        param = path.rstrip("`").lstrip(".") or (unknown[1] if unknown else None)
        raise CallError(400, problem, param=param, reason="unknown_parameter" if unknown else None) from None
    except RecursionError:
        raise CallError(400, "the body is nested too deeply") from None


def names_models(http: HttpCall) -> bool:
    """True for a request for the list of models, or for one model."""
    return http.method == "GET" and (http.path.rstrip("/") + "/").startswith(MODELS + "/")


def models_of(model: Model, http: HttpCall) -> bytes:
    """Returns the list with the one model, or the model under the requested name: any name is accepted."""
    name = http.path.rstrip("/").removeprefix(MODELS).lstrip("/")
    listed = {"id": name or model.name, "object": "model", "created": 0, "owned_by": "rftd"}
    return msgspec.json.encode(listed if name else {"object": "list", "data": [listed]})
