"""`ChatQuestion`: a conversation to be continued, and its prompt.

A call brings the whole conversation as text. Where it begins as an earlier one that was answered, with that answer,
its prompt is the earlier ids, drawn ones and all, and the chat template's text for what is new. Text that was drawn is
never encoded again: other ids of the same text would be trained under log-probabilities of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import DataError
from rftd.workers.rollout.endpoint.offered_tools import OfferedTools
from rftd.workers.rollout.endpoint.question import DrawSettings, QuestionPrompt, digest_of, text_of
from rftd.workers.rollout.endpoint.shown_text import ShownText
from rftd.workers.rollout.endpoint.tool_calls import OPEN, DrawnToolCall, tool_calls_in
from rftd.workers.rollout.endpoint.turns import TurnRecord
from rftd.workers.rollout.model import Model
from rftd.workers.rollout.response import Response
from rftd.workers.tasksets.message import Message

_MARK: Final = "\u2063rftd-answer-5d0c3b\u2063"
"""Stands for an answer where the template is asked what comes after it."""


class AssistantTurn(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as the client sees it."""

    text: str
    calls: tuple[DrawnToolCall, ...] = ()
    finish: str
    """`stop`, `length` or `tool_calls`."""

    @property
    def message(self) -> Message:
        """The message that a client sends back."""
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in self.calls]
        return Message("assistant", self.text, msgspec.json.encode({"tool_calls": calls}).decode() if calls else "")


class ChatQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's next message is asked for."""

    messages: tuple[Message, ...]
    tools: str = ""
    """A JSON list of what may be called; empty without any."""
    beginning: str = ""
    """What the answer is made to begin with."""
    finds_calls: bool = False
    choices: int = 1
    settings: DrawSettings
    stops: tuple[str, ...] = ()
    """The stop texts that the client does not see."""

    @classmethod
    def of(
        cls,
        messages: tuple[Message, ...],
        tools: OfferedTools,
        settings: DrawSettings,
        *,
        choices: int = 1,
    ) -> ChatQuestion:
        """The question after a conversation, with these tools. Raises CallError if they cannot be as asked."""
        return cls(
            messages=messages,
            tools=tools.shown,
            beginning=tools.beginning,
            finds_calls=tools.may_be_called,
            choices=choices,
            settings=msgspec.structs.replace(settings, stop=(*settings.stop, *tools.stops)),
            stops=settings.stop,
        )

    def prompt(self, model: Model, record: TurnRecord) -> QuestionPrompt:
        """The ids: those of the longest beginning that was answered, and what the template says after it."""
        keys = _keys(self.tools, self.messages)
        for count in range(len(self.messages), 0, -1):
            parent = record.find(keys[count]) if self.messages[count - 1].role == "assistant" else None
            if parent is None:
                continue
            told = self._after(model, count)
            if told is None:
                break
            ids = model.tokenizer.encode(told + self.beginning)
            # The template ends a message as the model does: its end is there already if it was drawn.
            if ids and ids[0] == parent.tokens[-1] and ids[0] in model.tokenizer.eos_ids:
                ids = ids[1:]
            return QuestionPrompt((*parent.tokens, *ids), parent, self.beginning)
        ids = model.chat_prompt(self.messages, reply_prefix=self.beginning, tools=self.tools)
        return QuestionPrompt(ids, None, self.beginning)

    def key_after(self, prompt: QuestionPrompt, response: Response) -> bytes:
        """The key of the conversation with this answer."""
        return _keys(self.tools, (*self.messages, self.said(prompt, response).message))[-1]

    def shown(self, prompt: QuestionPrompt, model: Model) -> ShownText:
        """The text of an answer while it is drawn."""
        opens = OPEN if self.finds_calls else ""
        return ShownText(model.tokenizer, beginning=prompt.text, stops=self.stops, opens=opens)

    def said(self, prompt: QuestionPrompt, response: Response) -> AssistantTurn:
        """The answer as the client sees it."""
        text = text_of(prompt, response, self.stops)
        if self.finds_calls:
            text, calls = tool_calls_in(text)
            if calls:
                return AssistantTurn(text=text, calls=calls, finish="tool_calls")
        return AssistantTurn(text=text, finish=response.finish)

    def _after(self, model: Model, count: int) -> str | None:
        """The template's text after the answer that is the message before `count`; None if it cannot be told."""
        marked = (*self.messages[: count - 1], Message("assistant", _MARK), *self.messages[count:])
        try:
            text = model.tokenizer.chat_text(marked, generation_prompt=True, tools=self.tools)
        except DataError:
            return None  # a template that demands that the result of a tool follows its call
        before, mark, after = text.partition(_MARK)
        return after if mark and before and _MARK not in after else None


def _keys(tools: str, messages: Sequence[Message]) -> list[bytes]:
    """The key of each beginning of the conversation, by its number of messages."""
    keys = [digest_of(tools.encode())]
    for message in messages:
        keys.append(digest_of(keys[-1], _identity(message)))
    return keys


def _identity(message: Message) -> bytes:
    """What makes two messages the same: not the ids of tool calls, which clients may name anew."""
    extra: dict[str, Any] = json_decoder(dict[str, Any]).decode(message.extra) if message.extra else {}
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in extra.get("tool_calls") or ()]
    return msgspec.json.encode([message.role, message.content, extra.get("name"), calls], order="deterministic")
