"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.rollout.endpoint.call_error import CallError, unsupported
from rftd.workers.rollout.endpoint.chat_message import ChatMessage, messages_of
from rftd.workers.rollout.endpoint.conversation import AssistantTurn, ChatQuestion
from rftd.workers.rollout.endpoint.question import (
    DONE,
    Answered,
    DrawSettings,
    QuestionPrompt,
    biases_of,
    checked_choices,
    checked_length,
    event,
    stops_of,
)
from rftd.workers.rollout.endpoint.tool_calls import CLOSE, forced_beginning
from rftd.workers.rollout.endpoint.turns import TurnRecord
from rftd.workers.rollout.model import Model
from rftd.workers.rollout.response import Response

UNSTRUCTURED: Final = ("text",)


class StreamOptions(msgspec.Struct, frozen=True):
    """How the events of a stream look."""

    include_usage: bool = False
    include_obfuscation: bool = False
    """Has no effect."""


class NamedFunction(msgspec.Struct, frozen=True):
    """The function of a `tool_choice`."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """A `tool_choice` of one tool."""

    function: NamedFunction
    type: Literal["function"] = "function"


class FunctionSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """What can be called; the template is given all that is said of it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool of a request."""

    type: Literal["function"]
    function: FunctionSchema


class ResponseFormat(msgspec.Struct, frozen=True):
    """The form that an answer must have; only `text` can be had."""

    type: str


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a call. Fields of the last paragraph are taken and have no effect."""

    messages: list[ChatMessage]
    model: str = ""
    """Any name: there is one model."""
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolSchema] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    # Not OpenAI's; vLLM and SGLang take them too.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None

    seed: int | None = None
    """What a rollout draws follows from its own seed."""
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None


class ChatCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `Question` for the chat API."""

    question: ChatQuestion
    model: str
    choices: int
    stream: bool
    with_usage: bool
    with_logprobs: bool

    @classmethod
    def read(cls, body: bytes) -> ChatCall:
        """The call in a body. Raises CallError, or msgspec.MsgspecError for what is malformed."""
        given = json_decoder(ChatRequest).decode(body)
        _refuse_what_cannot_be(given)
        tools, beginning = _tools_of(given)
        stops = stops_of(given.stop)
        one_call = given.parallel_tool_calls is False and bool(tools)
        length = given.max_completion_tokens if given.max_completion_tokens is not None else given.max_tokens
        settings = DrawSettings(
            temperature=given.temperature,
            top_p=given.top_p,
            top_k=given.top_k,
            min_p=given.min_p,
            repetition_penalty=given.repetition_penalty,
            presence_penalty=given.presence_penalty,
            logit_bias=biases_of(given.logit_bias),
            min_tokens=given.min_tokens,
            max_tokens=checked_length(length, "max_completion_tokens"),
            stop=(*stops, CLOSE) if one_call else stops,
        )
        question = ChatQuestion(
            messages=messages_of(given.messages),
            tools=tools,
            beginning=beginning,
            finds_calls=bool(tools) and given.tool_choice != "none",
            settings=settings,
            stops=stops,
        )
        return cls(
            question=question,
            model=given.model,
            choices=checked_choices(given.n),
            stream=bool(given.stream),
            with_usage=given.stream_options is not None and given.stream_options.include_usage,
            with_logprobs=bool(given.logprobs),
        )

    @property
    def settings(self) -> DrawSettings:
        """The question's."""
        return self.question.settings

    def prompt(self, model: Model, record: TurnRecord) -> QuestionPrompt:
        """The question's."""
        return self.question.prompt(model, record)

    def key_after(self, prompt: QuestionPrompt, response: Response) -> bytes:
        """The question's."""
        return self.question.key_after(prompt, response)

    def whole(self, answered: Answered) -> bytes:
        """A `chat.completion`."""
        choices = []
        for index, response in enumerate(answered.responses):
            said = self.question.said(answered.prompt, response)
            message: dict[str, Any] = {"role": "assistant", "content": said.text}
            if said.calls:
                message["content"] = said.text or None
                message["tool_calls"] = _calls(answered, index, said)
            logprobs = self._logprobs(answered, response)
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": said.finish})
        return msgspec.json.encode(
            {**self._head(answered, "chat.completion"), "choices": choices, "usage": answered.usage}
        )

    def events(self, answered: Answered) -> Iterator[bytes]:
        """`chat.completion.chunk`s. Whole answers in them, for an engine gives an answer when it is complete."""
        head = self._head(answered, "chat.completion.chunk")
        if self.with_usage:
            head["usage"] = None
        for index, response in enumerate(answered.responses):
            said = self.question.said(answered.prompt, response)
            deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
            if said.text:
                deltas.append({"content": said.text})
            deltas += [
                {"tool_calls": [{"index": place, **call}]} for place, call in enumerate(_calls(answered, index, said))
            ]
            for number, delta in enumerate(deltas):
                logprobs = self._logprobs(answered, response) if number == 1 else None
                choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
                yield event({**head, "choices": [choice]})
            last = {"index": index, "delta": {}, "logprobs": None, "finish_reason": said.finish}
            yield event({**head, "choices": [last]})
        if self.with_usage:
            yield event({**head, "choices": [], "usage": answered.usage})
        yield DONE

    def _head(self, answered: Answered, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{answered.id}",
            "object": kind,
            "created": answered.created_s,
            "model": self.model,
            "system_fingerprint": answered.fingerprint,
        }

    def _logprobs(self, answered: Answered, response: Response) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        decode = answered.tokens_of.tokenizer.decode
        listed = []
        for token, logprob in zip(response.tokens, response.logprobs, strict=True):
            text = decode([token])
            listed.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
        return {"content": listed, "refusal": None}


def _refuse_what_cannot_be(given: ChatRequest) -> None:
    if given.response_format is not None and given.response_format.type not in UNSTRUCTURED:
        wanted = given.response_format.type
        raise unsupported("response_format", f"the engine cannot hold answers to response_format {wanted!r}")
    if given.frequency_penalty:
        raise unsupported("frequency_penalty", "the engine draws without frequency_penalty; use repetition_penalty")
    if given.top_logprobs:
        raise unsupported("top_logprobs", "the engine tells the log-probability of the drawn token alone")


def _tools_of(given: ChatRequest) -> tuple[str, str]:
    """The tools as JSON, and what an answer has to begin with."""
    names = [tool.function.name for tool in given.tools or ()]
    tools = msgspec.json.encode(given.tools).decode() if given.tools else ""
    choice = given.tool_choice
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            known = ", ".join(names) or "none"
            raise CallError(
                400, f"tool_choice names {choice.function.name!r}; the tools are: {known}", param="tool_choice"
            )
        return tools, forced_beginning(choice.function.name)
    if choice == "required":
        if not names:
            raise CallError(400, "tool_choice is 'required', and there are no tools", param="tool_choice")
        return tools, forced_beginning(names[0] if len(names) == 1 else None)
    return tools, ""


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
