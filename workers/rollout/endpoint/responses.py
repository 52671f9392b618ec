"""`POST /v1/responses`, in the part that agents use: messages, calls of functions and their results, streams.

Nothing is stored: a request brings the whole conversation, as agents send it that do not use `previous_response_id`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.rollout.endpoint.api_call import Answered, Begun, EventsAtEnd, named_event
from rftd.workers.rollout.endpoint.call_error import CallError, unsupported
from rftd.workers.rollout.endpoint.chat_message import ROLES, ContentPart, called, content_text
from rftd.workers.rollout.endpoint.conversation import ChatQuestion
from rftd.workers.rollout.endpoint.draw_request import checked_length
from rftd.workers.rollout.endpoint.offered_tools import FunctionSchema, OfferedTools, ToolSchema
from rftd.workers.rollout.endpoint.question import DrawSettings
from rftd.workers.tasksets.message import Message


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
    """The form that an answer must have; only `text` can be had."""

    type: str


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
        if given.text is not None and given.text.format is not None and given.text.format.type != "text":
            raise unsupported("text.format", f"the engine cannot hold answers to the format {given.text.format.type!r}")
        settings = DrawSettings(
            temperature=given.temperature,
            top_p=given.top_p,
            max_tokens=checked_length(given.max_output_tokens, "max_output_tokens"),
        )
        question = ChatQuestion.of(_messages_of(given), _tools_of(given), settings)
        return cls(question=question, given=given)

    @property
    def stream(self) -> bool:
        """True if the answer is wanted as events."""
        return bool(self.given.stream)

    def whole(self, answered: Answered) -> bytes:
        """A `response`."""
        return msgspec.json.encode(self._response(answered, self._output(answered)))

    def events(self, begun: Begun) -> EventsAtEnd:
        """All at the end."""
        return EventsAtEnd(self._events)

    def _events(self, answered: Answered) -> Iterator[bytes]:
        """The events of a response that is made whole at once, each numbered and named."""
        output = self._output(answered)
        events: list[dict[str, Any]] = []
        begun = self._response(answered, [], status="in_progress")
        events.append({"type": "response.created", "response": begun})
        events.append({"type": "response.in_progress", "response": begun})
        for place, item in enumerate(output):
            events += _item_events(place, item)
        response = self._response(answered, output)
        events.append({"type": f"response.{response['status']}", "response": response})
        for number, each in enumerate(events):
            yield named_event({**each, "sequence_number": number})

    def _output(self, answered: Answered) -> list[dict[str, Any]]:
        said = self.question.said(answered.prompt, answered.responses[0])
        output: list[dict[str, Any]] = []
        if said.text or not said.calls:
            content = [{"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}]
            head = {"id": f"msg_{answered.id}", "type": "message", "status": "completed", "role": "assistant"}
            output.append({**head, "content": content})
        for place, call in enumerate(said.calls):
            output.append(
                {
                    "id": f"fc_{answered.id}{place:02}",
                    "type": "function_call",
                    "status": "completed",
                    "call_id": f"call_{answered.id}{place:02}",
                    "name": call.name,
                    "arguments": call.arguments_json,
                }
            )
        return output

    def _response(
        self, answered: Answered, output: list[dict[str, Any]], *, status: str | None = None
    ) -> dict[str, Any]:
        cut = answered.responses[0].finish == "length"
        usage = answered.usage
        given = self.given
        return {
            "id": f"resp_{answered.id}",
            "object": "response",
            "created_at": answered.created_s,
            "status": status or ("incomplete" if cut else "completed"),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut and status is None else None,
            "instructions": given.instructions,
            "max_output_tokens": given.max_output_tokens,
            "metadata": given.metadata or {},
            "model": given.model,
            "output": output,
            "parallel_tool_calls": given.parallel_tool_calls is not False,
            "previous_response_id": None,
            "temperature": given.temperature,
            "top_p": given.top_p,
            "text": {"format": {"type": "text"}},
            "tool_choice": given.tool_choice or "auto",
            "tools": [{"strict": False, **msgspec.to_builtins(tool)} for tool in given.tools or ()],
            "truncation": "disabled",
            "usage": None
            if status
            else {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }


def _item_events(place: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An item of the output, as it grows: here in one step."""
    at: dict[str, Any] = {"output_index": place, "item_id": item["id"]}
    begun = {**item, "status": "in_progress"}
    if item["type"] == "message":
        (part,) = item["content"]
        yield {"type": "response.output_item.added", "output_index": place, "item": {**begun, "content": []}}
        at["content_index"] = 0
        yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
        yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
        yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **at, "part": part}
    else:
        arguments = item["arguments"]
        yield {"type": "response.output_item.added", "output_index": place, "item": {**begun, "arguments": ""}}
        yield {"type": "response.function_call_arguments.delta", **at, "delta": arguments}
        yield {"type": "response.function_call_arguments.done", **at, "name": item["name"], "arguments": arguments}
    yield {"type": "response.output_item.done", "output_index": place, "item": item}


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
