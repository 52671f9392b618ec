"""`POST /v1/responses`: the part in use by agents: messages, calls of functions and their results, streams.

Nothing is stored: a request brings the whole conversation, as agents without `previous_response_id` send it.
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
    """A message, a call, or a call's result. Unknown fields are ignored: clients send items back with fields of their
    own.
    """

    type: str = "message"
    """`message`, `function_call` or `function_call_output`."""
    role: str = ""
    """Role of a message's author."""
    content: str | list[ContentPart] | None = None
    """Content of a message."""
    call_id: str = ""
    """Id of a call, or of the call answered by a result."""
    name: str = ""
    """Name of the called function."""
    arguments: str = ""
    """Arguments of the call, as JSON text."""
    output: str | list[ContentPart] | None = None
    """Result of a call."""


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A callable function, with the JSON schema of its parameters."""

    type: str
    """`function`; other types are refused."""
    name: str = ""
    """Name of the function."""
    description: str | None = None
    """Description for the model."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments."""


class NamedFunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A `tool_choice` of one function."""

    type: Literal["function"]
    """Always `function`."""
    name: str
    """Name of the function to call."""


class TextFormat(msgspec.Struct, frozen=True):
    """The requested form of the answer: `text`, `json_object` or `json_schema`."""

    type: str
    """`text`, `json_object` or `json_schema`."""
    name: str = ""
    """Name of the schema."""
    schema: dict[str, Any] | None = None
    """The schema, for `json_schema`."""
    description: str | None = None
    """Description, not used."""
    strict: bool | None = None
    """No effect: the answer always obeys the schema."""


class TextOptions(msgspec.Struct, frozen=True):
    """Options of an answer's text."""

    format: TextFormat | None = None
    """Requested form of the answer."""
    verbosity: str | None = None
    """No effect."""


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a call. Fields of the last paragraph are accepted without effect."""

    input: str | list[InputItem]
    """A text, or the conversation's items."""
    model: str = ""
    """Any name: there is one model."""
    instructions: str | None = None
    """System prompt."""
    stream: bool | None = None
    """True: the answer is sent as events."""
    max_output_tokens: int | None = None
    """Maximum tokens of the answer."""
    temperature: float | None = None
    """Sampling temperature; None: the experiment's."""
    top_p: float | None = None
    """Nucleus size; None: the experiment's."""
    tools: list[FunctionTool] | None = None
    """The callable functions."""
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    """Choice among the functions: optional, required, forbidden, or one function by name; None: optional."""
    parallel_tool_calls: bool | None = None
    """False: an answer has at most one call."""
    text: TextOptions | None = None
    """Options of the answer's text."""
    previous_response_id: str | None = None
    """Refused: nothing is stored between calls."""
    conversation: Any = None
    """Refused: nothing is stored between calls."""
    background: bool | None = None
    """Refused unless false."""

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
        """Requested form of the answer."""
        return (self.text.format if self.text is not None else None) or TextFormat("text")


class ResponsesCall(msgspec.Struct, frozen=True, kw_only=True):
    """Implements `ApiCall` for the responses API."""

    question: ChatQuestion
    """The question to draw an answer for."""
    request: ResponsesRequest
    """The decoded body."""

    @classmethod
    def read(cls, body: bytes) -> ResponsesCall:
        """Reads the call from a body. Raises CallError, or msgspec.MsgspecError for a malformed body."""
        request = json_decoder(ResponsesRequest).decode(body)
        for param in ("previous_response_id", "conversation", "background"):
            if getattr(request, param):
                raise unsupported(param, f"{param} is not supported: only the record of the rollout is stored")
        form = request.form
        tools = _tools_of(request)
        settings = DrawSettings(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=checked_length(request.max_output_tokens, "max_output_tokens"),
            held=held_answer(form.type, form.schema, tools, "text.format"),
        )
        question = ChatQuestion(messages=_messages_of(request), tools=tools, settings=settings)
        return cls(question=question, request=request)

    @property
    def stream(self) -> bool:
        """True if the client requests the answer as events."""
        return bool(self.request.stream)

    def id_of(self, begun: Begun) -> str:
        """Returns the id of the answer in replies to the client."""
        return f"resp_{begun.id}"

    def whole(self, answered: Answered) -> bytes:
        """Returns the complete answer as a `response` object, encoded as JSON."""
        turn = self.question.assistant_turn(answered.prompt, answered.responses[0])
        return msgspec.json.encode(self.complete(answered, items_of(answered, turn)))

    def events(self, begun: Begun) -> ResponseEvents:
        """Returns a writer of the response's items as they are drawn."""
        return ResponseEvents(self, begun)

    def complete(self, answered: Answered, output: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns a finished response with its items, status and usage."""
        cut = answered.responses[0].finish == "length"
        usage = answered.usage
        token_counts = {
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
        return {**self.begun(answered), **ended, "output": output, "usage": token_counts}

    def begun(self, begun: Begun) -> dict[str, Any]:
        """Returns a response without items, for the start of a stream."""
        request = self.request
        return {
            "id": self.id_of(begun),
            "object": "response",
            "created_at": begun.created_s,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": request.model,
            "output": [],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "text": {"format": msgspec.to_builtins(request.form)},
            "tool_choice": request.tool_choice or "auto",
            "tools": [{"strict": False, **msgspec.to_builtins(tool)} for tool in request.tools or ()],
            "truncation": "disabled",
            "usage": None,
        }


def items_of(begun: Begun, turn: AssistantTurn) -> list[dict[str, Any]]:
    """Returns the output's items: the thought, the message, the calls."""
    output: list[dict[str, Any]] = []
    if turn.thought is not None:
        thought = {"type": "reasoning_text", "text": turn.thought}
        head = {"id": f"rs_{begun.id}", "type": "reasoning", "status": "completed", "summary": []}
        output.append({**head, "content": [thought]})
    if turn.text or not turn.calls:
        content = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        head = {"id": f"msg_{begun.id}", "type": "message", "status": "completed", "role": "assistant"}
        output.append({**head, "content": [content]})
    for position, call in enumerate(turn.calls):
        function_call = {
            "id": f"fc_{begun.id}{position:02}",
            "type": "function_call",
            "status": "completed",
            "call_id": f"call_{begun.id}{position:02}",
            "name": call.name,
            "arguments": call.arguments_json,
        }
        output.append(function_call)
    return output


class ResponseEvents:
    """Implements `AnswerEvents` for the responses API, with numbered events. Calls are sent when complete."""

    def __init__(self, call: ResponsesCall, begun: Begun) -> None:
        """Writes the answer `begun` to `call`."""
        self._call = call
        self._begun = begun
        self._text = call.question.shown(begun.prompt, begun.tokens_of)
        """Tracker of the text that can be sent."""
        self._number = 0
        """Number of the next event."""
        self._items = 0
        """Number of items begun."""
        self._open: dict[str, Any] | None = None
        """The open item, with the text sent until now; None without one."""

    def drawn(self, index: int, tokens: Sequence[int], logprobs: Sequence[float]) -> Iterator[bytes]:
        """Yields the deltas of thought and text for newly drawn tokens."""
        yield from self._part_events(self._text.add(tokens))

    def rest(self, answered: Answered) -> Iterator[bytes]:
        """Yields the events for the remaining thought and text, for the calls, and for the complete response."""
        turn = self._call.question.assistant_turn(answered.prompt, answered.responses[0])
        output = items_of(answered, turn)
        yield from self._start_once()
        yield from self._part_events(self._text.finish(turn.text, turn.thought))
        yield from self._end_item()
        # An empty thought, an empty answer and calls are items without any event so far.
        for output_item in output[self._items :]:
            yield from self._whole_item_events(output_item)
        response = self._call.complete(answered, output)
        yield self._numbered_event({"type": f"response.{response['status']}", "response": response})

    def _numbered_event(self, body: dict[str, Any]) -> bytes:
        """Returns an event with the next number."""
        number = self._number
        self._number = number + 1
        return named_event({**body, "sequence_number": number})

    def _start_once(self) -> Iterator[bytes]:
        """Yields the first events, once."""
        if not self._number:
            for kind in ("created", "in_progress"):
                yield self._numbered_event({"type": f"response.{kind}", "response": self._call.begun(self._begun)})

    def _part_events(self, parts: ShownParts) -> Iterator[bytes]:
        """Yields the deltas of thought and text."""
        for kind, text in (("reasoning", parts.thought), ("message", parts.text)):
            if text:
                yield from self._start_once()
                yield from self._begin_unless_open(kind)
                yield from self._delta_event(text)

    def _begin_unless_open(self, kind: str) -> Iterator[bytes]:
        """Begins an item of this type unless one is open already."""
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self._end_item()
        empty = AssistantTurn(text="", thought="" if kind == "reasoning" else None, finish="stop")
        yield from self._begin(items_of(self._begun, empty)[0])

    def _item_position(self) -> dict[str, Any]:
        """Returns index and id of the open item."""
        assert self._open is not None
        return {"output_index": self._items - 1, "item_id": self._open["id"]}

    def _begin(self, output_item: dict[str, Any]) -> Iterator[bytes]:
        """Yields the events for a new item and its empty part."""
        self._open = output_item
        self._items += 1
        begun = {**output_item, "status": "in_progress", "content": []}
        yield self._numbered_event(
            {"type": "response.output_item.added", "output_index": self._items - 1, "item": begun}
        )
        part_event = {
            "type": "response.content_part.added",
            **self._item_position(),
            "content_index": 0,
            "part": output_item["content"][0],
        }
        yield self._numbered_event(part_event)

    def _delta_event(self, text: str) -> Iterator[bytes]:
        """Yields the event with a part of the open item's text."""
        assert self._open is not None
        (content,) = self._open["content"]
        self._open = {**self._open, "content": [{**content, "text": content["text"] + text}]}
        yield self._numbered_event(
            {"type": f"response.{content['type']}.delta", **self._content_position(content), "delta": text}
        )

    def _content_position(self, content: dict[str, Any]) -> dict[str, Any]:
        """Returns the index and id of the open item with the index of its only part; for a text, also empty
        log-probabilities.
        """
        at = {**self._item_position(), "content_index": 0}
        return {**at, "logprobs": []} if "logprobs" in content else at

    def _end_item(self) -> Iterator[bytes]:
        """Yields the events that end the open item."""
        output_item = self._open
        if output_item is None:
            return
        (content,) = output_item["content"]
        yield self._numbered_event(
            {"type": f"response.{content['type']}.done", **self._content_position(content), "text": content["text"]}
        )
        yield self._numbered_event(
            {"type": "response.content_part.done", **self._item_position(), "content_index": 0, "part": content}
        )
        yield self._numbered_event(
            {"type": "response.output_item.done", "output_index": self._items - 1, "item": output_item}
        )
        self._open = None

    def _whole_item_events(self, output_item: dict[str, Any]) -> Iterator[bytes]:
        """Yields the events of an item sent in one step."""
        if output_item["type"] != "function_call":
            yield from self._begin(output_item)
            yield from self._delta_event("")
            yield from self._end_item()
            return
        position = self._items
        self._items += 1
        begun = {**output_item, "status": "in_progress", "arguments": ""}
        yield self._numbered_event({"type": "response.output_item.added", "output_index": position, "item": begun})
        at = {"output_index": position, "item_id": output_item["id"]}
        arguments = output_item["arguments"]
        kind = "response.function_call_arguments"
        yield self._numbered_event({"type": f"{kind}.delta", **at, "delta": arguments})
        yield self._numbered_event({"type": f"{kind}.done", **at, "name": output_item["name"], "arguments": arguments})
        yield self._numbered_event({"type": "response.output_item.done", "output_index": position, "item": output_item})


def _messages_of(request: ResponsesRequest) -> tuple[Message, ...]:
    """Returns the conversation; an assistant's text and calls between two other messages become one message."""
    messages = [Message("system", request.instructions)] if request.instructions else []
    if isinstance(request.input, str):
        return (*messages, Message("user", request.input))
    text = ""
    calls: list[dict[str, Any]] = []
    spoke = False
    for number, input_item in enumerate(request.input):
        path = f"input[{number}]"
        assistant = input_item.type == "function_call" or (
            input_item.type == "message" and input_item.role == "assistant"
        )
        if spoke and not assistant and input_item.type != "reasoning":
            messages.append(_assistant_message(text, calls))
            text = ""
            calls = []
            spoke = False
        if input_item.type == "reasoning":
            continue  # the model's thoughts exist only within its text
        if input_item.type == "function_call":
            calls.append(called(input_item.name, input_item.arguments, input_item.call_id))
        elif input_item.type == "function_call_output":
            extra = msgspec.json.encode({"tool_call_id": input_item.call_id}).decode()
            messages.append(Message("tool", content_text(input_item.output, f"{path}.output"), extra))
        elif input_item.type != "message":
            raise unsupported(f"{path}.type", f"{path} is of type {input_item.type!r}, which is not supported")
        elif assistant:
            text += content_text(input_item.content, f"{path}.content")
        elif input_item.role in ROLES:
            messages.append(Message(ROLES[input_item.role], content_text(input_item.content, f"{path}.content")))
        else:
            raise CallError(400, f"{path}.role is {input_item.role!r}", param=f"{path}.role")
        spoke = spoke or assistant
    if spoke:
        messages.append(_assistant_message(text, calls))
    if not messages:
        raise CallError(400, "input is empty", param="input")
    return tuple(messages)


def _assistant_message(text: str, calls: list[dict[str, Any]]) -> Message:
    """Builds the assistant's message of text and calls."""
    return Message("assistant", text, msgspec.json.encode({"tool_calls": calls}).decode() if calls else "")


def _tools_of(request: ResponsesRequest) -> OfferedTools:
    """Returns the functions of a request. Raises CallError for other types of tools."""
    listed = []
    for number, tool in enumerate(request.tools or ()):
        if tool.type != "function":
            raise unsupported(f"tools[{number}].type", f"a tool of type {tool.type!r} is not supported")
        listed.append(ToolSchema("function", FunctionSchema(tool.name, tool.description, tool.parameters)))
    choice = request.tool_choice
    return OfferedTools(
        schemas=tuple(listed),
        choice=FunctionSchema(choice.name) if isinstance(choice, NamedFunctionTool) else choice or "auto",
        parallel=request.parallel_tool_calls is not False,
    )
