"""`ChatQuestion`: a conversation to be continued, and its prompt.

A call brings the whole conversation as text. Where it begins as an earlier one that was answered, with that answer,
its prompt is the earlier ids, drawn ones and all, and the chat template's text for what is new. Text that was drawn is
never encoded again: other ids of the same text would be trained under log-probabilities of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from rftd.ops.decoding import json_decoder
from rftd.workers.datasets.message import Message
from rftd.workers.generation.continuation import continued, text_after
from rftd.workers.generation.endpoint.answer_form import AnswerForm, ThoughtForm
from rftd.workers.generation.endpoint.offered_tools import OfferedTools
from rftd.workers.generation.endpoint.question import DrawSettings, QuestionPrompt, digest_of, text_of
from rftd.workers.generation.endpoint.shown_text import ShownText
from rftd.workers.generation.endpoint.tool_calls import DrawnToolCall
from rftd.workers.generation.endpoint.turns import RecordedTurn, TurnRecord
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response


class AssistantTurn(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as the client sees it."""

    text: str
    thought: str | None = None
    """The thought before the answer; None where the model does not think, or nobody looks for it."""
    calls: tuple[DrawnToolCall, ...] = ()
    finish: str
    """`stop`, `length` or `tool_calls`."""

    @property
    def message(self) -> Message:
        """The message that a client sends back; what was thought is no part of it."""
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in self.calls]
        return Message("assistant", self.text, msgspec.json.encode({"tool_calls": calls}).decode() if calls else "")


class ChatQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's next message is asked for."""

    messages: tuple[Message, ...]
    tools: OfferedTools = OfferedTools()
    choices: int = 1
    settings: DrawSettings

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts that the client does not see."""
        return self.settings.stop

    def prompt(self, model: Model, record: TurnRecord) -> QuestionPrompt:
        """The ids: those of the longest beginning that was answered, and what the template says after it.

        Raises CallError if the tools cannot be as asked.
        """
        form = AnswerForm.of(model.spec)
        beginning = self.tools.beginning(form.tools)
        keys = _keys(self.tools.shown, self.messages)
        for count in range(len(self.messages), 0, -1):
            parent = record.find(keys[count]) if self.messages[count - 1].role == "assistant" else None
            if parent is None:
                continue
            following = text_after(model.tokenizer, self.messages, count, tools=self.tools.shown)
            if following is None:
                break
            ids = continued(model.tokenizer, parent.tokens, _begun(following, form, beginning))
            return self._prompt(ids, parent, beginning, form, following, model)
        following = model.tokenizer.chat_text(self.messages, generation_prompt=True, tools=self.tools.shown)
        ids = model.tokenizer.encode(_begun(following, form, beginning))
        return self._prompt(ids, None, beginning, form, following, model)

    def key_after(self, prompt: QuestionPrompt, response: Response) -> bytes:
        """The key of the conversation with this answer."""
        return _keys(self.tools.shown, (*self.messages, self.said(prompt, response).message))[-1]

    def shown(self, prompt: QuestionPrompt, model: Model) -> ShownText:
        """The text of an answer while it is drawn."""
        return ShownText(
            prompt.decode or model.tokenizer.decode,
            beginning=prompt.text,
            stops=self.stops,
            calls=prompt.form.tools if self.tools.may_be_called(prompt.form) else None,
            thoughts=prompt.form.thoughts,
            in_thought=prompt.in_thought,
        )

    def said(self, prompt: QuestionPrompt, response: Response) -> AssistantTurn:
        """The answer as the client sees it."""
        text = text_of(prompt, response, self.stops)
        thought = None
        if prompt.form.thoughts is not None:
            thought, text = prompt.form.thoughts.split(text, opened=prompt.in_thought)
            thought = thought or None  # an empty one is shown by nobody
        if self.tools.may_be_called(prompt.form):
            text, calls = prompt.form.tools.split(text, self.tools.parameters)
            if calls:
                # A form without an end for each call is drawn to the end of all; the client asked for one.
                calls = calls if self.tools.parallel else calls[:1]
                return AssistantTurn(text=text, thought=thought, calls=calls, finish="tool_calls")
        return AssistantTurn(text=text, thought=thought, finish=response.finish)

    def _prompt(
        self,
        ids: Sequence[int],
        parent: RecordedTurn | None,
        beginning: str,
        form: AnswerForm,
        told: str,
        model: Model,
    ) -> QuestionPrompt:
        thoughts = form.thoughts
        if beginning:  # a call, which no thought comes before
            form = replace(form, thoughts=None)
        return QuestionPrompt(
            ids=ids,
            parent=parent,
            text=beginning,
            form=form,
            in_thought=thoughts is not None and not beginning and (thoughts.always or _thinks(told, thoughts)),
            ends=self.tools.stops(form.tools),
            decode=form.decoder(model.tokenizer),
        )


def _thinks(told: str, thoughts: ThoughtForm) -> bool:
    """True if the template begins a thought for the model."""
    return told.rstrip().endswith(thoughts.opens)


def _begun(told: str, form: AnswerForm, beginning: str) -> str:
    """The template's text and what the answer begins with; a thought that the template began is ended before that."""
    if beginning and form.thoughts is not None and _thinks(told, form.thoughts):
        return f"{told}{form.thoughts.closes}\n\n{beginning}"
    return told + beginning


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
