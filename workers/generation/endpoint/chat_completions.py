"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.generation.endpoint.api_call import DONE, Answered, Begun, event
from rftd.workers.generation.endpoint.call_error import unsupported
from rftd.workers.generation.endpoint.chat_message import ChatMessage, messages_of
from rftd.workers.generation.endpoint.conversation import AssistantTurn, ChatQuestion
from rftd.workers.generation.endpoint.draw_request import DrawRequest, checked_length, held_answer, stops_of
from rftd.workers.generation.endpoint.offered_tools import FunctionSchema, OfferedTools, ToolSchema
from rftd.workers.generation.endpoint.shown_text import ShownParts, ShownText


class NamedTool(msgspec.Struct, frozen=True):
    """A `tool_choice` of one tool."""

    function: FunctionSchema
    type: Literal["function"] = "function"


class JsonSchema(msgspec.Struct, frozen=True):
    """A schema by its name. The answer obeys it whether it is `strict` or not."""

    name: str = ""
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """The form that an answer must have: `text`, `json_object` or `json_schema`."""

    type: str
    json_schema: JsonSchema | None = None


class ChatRequest(DrawRequest, frozen=True, kw_only=True):
    """The body of a call. Fields of the last paragraph are taken and have no effect."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolSchema] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


class ChatCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `ApiCall` for the chat API."""

    question: ChatQuestion
    given: ChatRequest

    @classmethod
    def read(cls, body: bytes) -> ChatCall:
        """The call in a body. Raises CallError, or msgspec.MsgspecError for what is malformed."""
        given = json_decoder(ChatRequest).decode(body)
        _refuse_what_cannot_be(given)
        length = given.max_completion_tokens if given.max_completion_tokens is not None else given.max_tokens
        choice = given.tool_choice
        tools = OfferedTools(
            schemas=tuple(given.tools or ()),
            choice=choice.function if isinstance(choice, NamedTool) else choice or "auto",
            parallel=given.parallel_tool_calls is not False,
        )
        form = given.response_format or ResponseFormat("text")
        schema = form.json_schema.schema if form.json_schema is not None else None
        held = held_answer(form.type, schema, tools, "response_format")
        settings = given.settings(checked_length(length, "max_completion_tokens"), stops_of(given.stop), held)
        question = ChatQuestion(
            messages=messages_of(given.messages), tools=tools, settings=settings, choices=given.choices
        )
        return cls(question=question, given=given)

    @property
    def stream(self) -> bool:
        """True if the answer is wanted as events."""
        return bool(self.given.stream)

    def id_of(self, begun: Begun) -> str:
        """The id of the answer, as the client sees it."""
        return f"chatcmpl-{begun.id}"

    def whole(self, answered: Answered) -> bytes:
        """A `chat.completion`."""
        choices = []
        for index, response in enumerate(answered.responses):
            said = self.question.said(answered.prompt, response)
            message: dict[str, Any] = {"role": "assistant", "content": said.text}
            if said.calls:
                message["content"] = said.text or None
                message["tool_calls"] = _calls(answered, index, said)
            if said.thought is not None:
                message["reasoning"] = said.thought
            logprobs = self.logprobs(answered, response.tokens, response.logprobs)
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": said.finish})
        head = self.given.head(answered, self.id_of(answered), "chat.completion")
        return msgspec.json.encode({**head, "choices": choices, "usage": answered.usage})

    def events(self, begun: Begun) -> ChatEvents:
        """`chat.completion.chunk`s."""
        return ChatEvents(self, begun)

    def logprobs(self, begun: Begun, tokens: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any] | None:
        """What is told of the log-probabilities of tokens; None if that was not asked for."""
        if not self.given.logprobs:
            return None
        decode = begun.tokens_of.tokenizer.decode
        listed = []
        for token, logprob in zip(tokens, logprobs, strict=True):
            text = decode([token])
            listed.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
        return {"content": listed, "refusal": None}


class _ChoiceEvents:
    """What one choice's client was told so far."""

    def __init__(self, text: ShownText) -> None:
        self.text = text
        self.begun = False
        self.untold: tuple[list[int], list[float]] = ([], [])
        """The tokens that no event told the log-probabilities of."""
        self.drawn = 0


class ChatEvents:
    """Implements `AnswerEvents` for the chat API. A tool's call is told when the answer is complete."""

    def __init__(self, call: ChatCall, begun: Begun) -> None:
        self._call = call
        self._begun = begun
        self._head = call.given.head(begun, call.id_of(begun), "chat.completion.chunk")
        self._choices = [
            _ChoiceEvents(call.question.shown(begun.prompt, begun.tokens_of)) for _ in range(call.question.choices)
        ]

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterator[bytes]:
        """The text that may be shown, if there is any."""
        choice = self._choices[index]
        choice.drawn += len(tokens)
        choice.untold[0].extend(tokens)
        choice.untold[1].extend(logprobs)
        parts = choice.text.more(tokens)
        if parts.thought or parts.text:
            yield from self._parts(index, parts)

    def rest(self, answered: Answered) -> Iterator[bytes]:
        """The rest of each choice's text, its calls, why it ended; and the usage."""
        for index, response in enumerate(answered.responses):
            choice = self._choices[index]
            choice.untold[0].extend(response.tokens[choice.drawn :])
            choice.untold[1].extend(response.logprobs[choice.drawn :])
            said = self._call.question.said(answered.prompt, response)
            yield from self._parts(index, choice.text.rest(said.text, said.thought))
            for place, call in enumerate(_calls(answered, index, said)):
                yield self._event(index, {"tool_calls": [{"index": place, **call}]})
            yield self._event(index, {}, finish=said.finish)
        if self._call.given.with_usage:
            yield event({**self._head, "choices": [], "usage": answered.usage})
        yield DONE

    def _parts(self, index: int, parts: ShownParts) -> Iterator[bytes]:
        choice = self._choices[index]
        if not choice.begun:
            choice.begun = True
            yield self._event(index, {"role": "assistant", "content": ""})
        told = self._call.logprobs(self._begun, *choice.untold) if choice.untold[0] else None
        choice.untold = ([], [])
        if parts.thought:
            yield self._event(index, {"reasoning": parts.thought}, None if parts.text else told)
        if parts.text or (told and not parts.thought):
            yield self._event(index, {"content": parts.text}, told)

    def _event(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**self._head, "choices": [choice]})


def _refuse_what_cannot_be(given: ChatRequest) -> None:
    if given.top_logprobs:
        raise unsupported("top_logprobs", "the engine tells the log-probability of the drawn token alone")


def _calls(answered: Answered, index: int, said: AssistantTurn) -> list[dict[str, Any]]:
    """The calls of one choice, each with an id that no other call of the rollout has."""
    return [
        {
            "id": f"call_{answered.id}{index:02}{place:02}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments_json},
        }
        for place, call in enumerate(said.calls)
    ]
