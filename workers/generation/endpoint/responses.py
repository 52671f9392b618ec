"""`POST /v1/responses`, in the part that agents use: messages, calls of functions and their results, streams.

Nothing is stored: a request brings the whole conversation, as agents send it that do not use `previous_response_id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.datasets.message import Message
from rftd.workers.generation.endpoint.api_call import Answered, Begun, named_event
from rftd.workers.generation.endpoint.call_error import CallError, unsupported
from rftd.workers.generation.endpoint.chat_message import ROLES, ContentPart, called, content_text
from rftd.workers.generation.endpoint.conversation import AssistantTurn, ChatQuestion
from rftd.workers.generation.endpoint.draw_request import checked_length, held_answer
from rftd.workers.generation.endpoint.offered_tools import FunctionSchema, OfferedTools, ToolSchema
from rftd.workers.generation.endpoint.question import DrawSettings
from rftd.workers.generation.endpoint.shown_text import ShownParts


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message, a call that was made, or its result. Items are sent back with fields of their own."""

    type: str = "message"
    role: str = ""
    content: str | list[ContentPart] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[ContentPart] | None = None


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that may be called."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NamedFunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A `tool_choice` of one function."""

    type: Literal["function"]
    name: str


class TextFormat(msgspec.Struct, frozen=True):
    """The form that an answer must have: `text`, `json_object` or `json_schema`."""

    type: str
    name: str = ""
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True):
    """How an answer's text is to be."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a call. Fields of the last paragraph are taken and have no effect."""

    input: str | list[InputItem]
    model: str = ""
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None

    include: list[str] | None = None
    store: bool | None = None
    truncation: str | None = None
    metadata: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None
    user: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    top_logprobs: int | None = None

    @property
    def form(self) -> TextFormat:
        """The form of the answer."""
        return (self.text.format if self.text is not None else None) or TextFormat("text")


class ResponsesCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `ApiCall` for the responses API."""

    question: ChatQuestion
    given: ResponsesRequest

    @classmethod
    def read(cls, body: bytes) -> ResponsesCall:
        """The call in a body. Raises CallError, or msgspec.MsgspecError for what is malformed."""
        given = json_decoder(ResponsesRequest).decode(body)
        for param in ("previous_response_id", "conversation", "background"):
            if getattr(given, param):
                raise unsupported(param, f"{param} is not supported: nothing is kept but the record of the rollout")
        form = given.form
        tools = _tools_of(given)
        settings = DrawSettings(
            temperature=given.temperature,
            top_p=given.top_p,
            max_tokens=checked_length(given.max_output_tokens, "max_output_tokens"),
            held=held_answer(form.type, form.schema, tools, "text.format"),
        )
        question = ChatQuestion(messages=_messages_of(given), tools=tools, settings=settings)
        return cls(question=question, given=given)

    @property
    def stream(self) -> bool:
        """True if the answer is wanted as events."""
        return bool(self.given.stream)

    def id_of(self, begun: Begun) -> str:
        """The id of the answer, as the client sees it."""
        return f"resp_{begun.id}"

    def whole(self, answered: Answered) -> bytes:
        """A `response`."""
        said = self.question.said(answered.prompt, answered.responses[0])
        return msgspec.json.encode(self.complete(answered, items_of(answered, said)))

    def events(self, begun: Begun) -> ResponseEvents:
        """The items of a response, as they are drawn."""
        return ResponseEvents(self, begun)

    def complete(self, answered: Answered, output: list[dict[str, Any]]) -> dict[str, Any]:
        """A response with its items."""
        cut = answered.responses[0].finish == "length"
        usage = answered.usage
        told = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        ended = {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        }
        return {**self.begun(answered), **ended, "output": output, "usage": told}

    def begun(self, begun: Begun) -> dict[str, Any]:
        """A response of which nothing is told yet."""
        given = self.given
        return {
            "id": self.id_of(begun),
            "object": "response",
            "created_at": begun.created_s,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": given.instructions,
            "max_output_tokens": given.max_output_tokens,
            "metadata": given.metadata or {},
            "model": given.model,
            "output": [],
            "parallel_tool_calls": given.parallel_tool_calls is not False,
            "previous_response_id": None,
            "temperature": given.temperature,
            "top_p": given.top_p,
            "text": {"format": msgspec.to_builtins(given.form)},
            "tool_choice": given.tool_choice or "auto",
            "tools": [{"strict": False, **msgspec.to_builtins(tool)} for tool in given.tools or ()],
            "truncation": "disabled",
            "usage": None,
        }


def items_of(begun: Begun, said: AssistantTurn) -> list[dict[str, Any]]:
    """The items of an output: what was thought, what was said, what was called."""
    items: list[dict[str, Any]] = []
    if said.thought is not None:
        thought = {"type": "reasoning_text", "text": said.thought}
        head = {"id": f"rs_{begun.id}", "type": "reasoning", "status": "completed", "summary": []}
        items.append({**head, "content": [thought]})
    if said.text or not said.calls:
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        head = {"id": f"msg_{begun.id}", "type": "message", "status": "completed", "role": "assistant"}
        items.append({**head, "content": [part]})
    for place, call in enumerate(said.calls):
        item = {
            "id": f"fc_{begun.id}{place:02}",
            "type": "function_call",
            "status": "completed",
            "call_id": f"call_{begun.id}{place:02}",
            "name": call.name,
            "arguments": call.arguments_json,
        }
        items.append(item)
    return items


class ResponseEvents:
    """Implements `AnswerEvents` for the responses API: each event is numbered. A call is told when it is complete."""

    def __init__(self, call: ResponsesCall, begun: Begun) -> None:
        self._call = call
        self._begun = begun
        self._text = call.question.shown(begun.prompt, begun.tokens_of)
        self._number = 0
        self._items = 0
        """The items that were begun."""
        self._open: dict[str, Any] | None = None
        """The one that is told, complete as far as it was."""

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterator[bytes]:
        """The deltas of thought and text."""
        yield from self._parts(self._text.more(tokens))

    def rest(self, answered: Answered) -> Iterator[bytes]:
        """The events of what is missing of thought and text, of the calls, and of the whole response."""
        said = self._call.question.said(answered.prompt, answered.responses[0])
        items = items_of(answered, said)
        yield from self._start()
        yield from self._parts(self._text.rest(said.text, said.thought))
        yield from self._end()
        # An empty thought, an empty answer and calls are items of which nothing was told yet.
        for item in items[self._items :]:
            yield from self._whole(item)
        response = self._call.complete(answered, items)
        yield self._event({"type": f"response.{response['status']}", "response": response})

    def _event(self, body: dict[str, Any]) -> bytes:
        number = self._number
        self._number = number + 1
        return named_event({**body, "sequence_number": number})

    def _start(self) -> Iterator[bytes]:
        if not self._number:
            for kind in ("created", "in_progress"):
                yield self._event({"type": f"response.{kind}", "response": self._call.begun(self._begun)})

    def _parts(self, parts: ShownParts) -> Iterator[bytes]:
        for kind, text in (("reasoning", parts.thought), ("message", parts.text)):
            if text:
                yield from self._start()
                yield from self._within(kind)
                yield from self._delta(text)

    def _within(self, kind: str) -> Iterator[bytes]:
        """Begins an item of this type unless it is the one that is told."""
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self._end()
        empty = AssistantTurn(text="", thought="" if kind == "reasoning" else None, finish="stop")
        yield from self._begin(items_of(self._begun, empty)[0])

    def _at(self) -> dict[str, Any]:
        assert self._open is not None
        return {"output_index": self._items - 1, "item_id": self._open["id"]}

    def _begin(self, item: dict[str, Any]) -> Iterator[bytes]:
        """An item, and its empty part."""
        self._open = item
        self._items += 1
        begun = {**item, "status": "in_progress", "content": []}
        yield self._event({"type": "response.output_item.added", "output_index": self._items - 1, "item": begun})
        part = {"type": "response.content_part.added", **self._at(), "content_index": 0, "part": item["content"][0]}
        yield self._event(part)

    def _delta(self, text: str) -> Iterator[bytes]:
        assert self._open is not None
        (part,) = self._open["content"]
        self._open = {**self._open, "content": [{**part, "text": part["text"] + text}]}
        yield self._event({"type": f"response.{part['type']}.delta", **self._text_at(part), "delta": text})

    def _text_at(self, part: dict[str, Any]) -> dict[str, Any]:
        at = {**self._at(), "content_index": 0}
        return {**at, "logprobs": []} if "logprobs" in part else at

    def _end(self) -> Iterator[bytes]:
        """Ends the item that is told."""
        item = self._open
        if item is None:
            return
        (part,) = item["content"]
        yield self._event({"type": f"response.{part['type']}.done", **self._text_at(part), "text": part["text"]})
        yield self._event({"type": "response.content_part.done", **self._at(), "content_index": 0, "part": part})
        yield self._event({"type": "response.output_item.done", "output_index": self._items - 1, "item": item})
        self._open = None

    def _whole(self, item: dict[str, Any]) -> Iterator[bytes]:
        """An item that is told in one step."""
        if item["type"] != "function_call":
            yield from self._begin(item)
            yield from self._delta("")
            yield from self._end()
            return
        place = self._items
        self._items += 1
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield self._event({"type": "response.output_item.added", "output_index": place, "item": begun})
        at = {"output_index": place, "item_id": item["id"]}
        arguments = item["arguments"]
        kind = "response.function_call_arguments"
        yield self._event({"type": f"{kind}.delta", **at, "delta": arguments})
        yield self._event({"type": f"{kind}.done", **at, "name": item["name"], "arguments": arguments})
        yield self._event({"type": "response.output_item.done", "output_index": place, "item": item})


def _messages_of(given: ResponsesRequest) -> tuple[Message, ...]:
    """The conversation. What an assistant said and called between two others' messages is one message."""
    messages = [Message("system", given.instructions)] if given.instructions else []
    if isinstance(given.input, str):
        return (*messages, Message("user", given.input))
    said = ""
    calls: list[dict[str, Any]] = []
    spoke = False
    for number, item in enumerate(given.input):
        place = f"input[{number}]"
        assistant = item.type == "function_call" or (item.type == "message" and item.role == "assistant")
        if spoke and not assistant and item.type != "reasoning":
            messages.append(_assistant(said, calls))
            said = ""
            calls = []
            spoke = False
        if item.type == "reasoning":
            continue  # the model has none but in its text
        if item.type == "function_call":
            calls.append(called(item.name, item.arguments, item.call_id))
        elif item.type == "function_call_output":
            extra = msgspec.json.encode({"tool_call_id": item.call_id}).decode()
            messages.append(Message("tool", content_text(item.output, f"{place}.output"), extra))
        elif item.type != "message":
            raise unsupported(f"{place}.type", f"{place} is of type {item.type!r}, which is not supported")
        elif assistant:
            said += content_text(item.content, f"{place}.content")
        elif item.role in ROLES:
            messages.append(Message(ROLES[item.role], content_text(item.content, f"{place}.content")))
        else:
            raise CallError(400, f"{place}.role is {item.role!r}", param=f"{place}.role")
        spoke = spoke or assistant
    if spoke:
        messages.append(_assistant(said, calls))
    if not messages:
        raise CallError(400, "input is empty", param="input")
    return tuple(messages)


def _assistant(said: str, calls: list[dict[str, Any]]) -> Message:
    return Message("assistant", said, msgspec.json.encode({"tool_calls": calls}).decode() if calls else "")


def _tools_of(given: ResponsesRequest) -> OfferedTools:
    listed = []
    for number, tool in enumerate(given.tools or ()):
        if tool.type != "function":
            raise unsupported(f"tools[{number}].type", f"a tool of type {tool.type!r} is not supported")
        listed.append(ToolSchema("function", FunctionSchema(tool.name, tool.description, tool.parameters)))
    choice = given.tool_choice
    return OfferedTools(
        schemas=tuple(listed),
        choice=FunctionSchema(choice.name) if isinstance(choice, NamedFunctionTool) else choice or "auto",
        parallel=given.parallel_tool_calls is not False,
    )
