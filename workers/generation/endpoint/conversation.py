"""`ChatQuestion`: a conversation to be continued, and its prompt.

A call brings the whole conversation as text. If the conversation begins with an earlier one and its answer, the prompt
consists of the earlier ids, drawn ones included, and the chat template's text for the new messages. Drawn text is never
encoded again: different ids of equal text would be trained under the log-probabilities of the drawn ids.
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
from rftd.workers.generation.endpoint.turn_record import RecordedTurn, TurnRecord
from rftd.workers.generation.model import Model
from rftd.workers.generation.response import Response


class AssistantTurn(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as sent to the client: text, thought and tool calls."""

    text: str
    """Text after the thought, without calls."""
    thought: str | None = None
    """Thought before the answer; None where the model does not think, or no form of thoughts is set."""
    calls: tuple[DrawnToolCall, ...] = ()
    """Tool calls of the answer."""
    finish: str
    """`stop`, `length` or `tool_calls`."""

    @property
    def message(self) -> Message:
        """The message for a client to send back, without the thought."""
        calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in self.calls]
        return Message("assistant", self.text, msgspec.json.encode({"tool_calls": calls}).decode() if calls else "")


class ChatQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the assistant's next message in a conversation, perhaps with tools."""

    messages: tuple[Message, ...]
    """The conversation."""
    tools: OfferedTools = OfferedTools()
    """The callable tools."""
    choices: int = 1
    """Number of answers to draw."""
    settings: DrawSettings
    """Sampling settings."""

    @property
    def stops(self) -> tuple[str, ...]:
        """The client's stop texts, cut from the end of the answer that the client sees."""
        return self.settings.stop

    def prompt(self, model: Model, record: TurnRecord) -> QuestionPrompt:
        """Returns the prompt: the ids of the longest answered beginning, then the template's text after it.

        Raises CallError for an impossible choice of tools.
        """
        form = AnswerForm.of(model.spec)
        beginning = self.tools.beginning(form.tools)
        keys = _conversation_keys(self.tools.shown, self.messages)
        for count in range(len(self.messages), 0, -1):
            parent = record.find(keys[count]) if self.messages[count - 1].role == "assistant" else None
            if parent is None:
                continue
            following = text_after(model.tokenizer, self.messages, count, tools=self.tools.shown)
            if following is None:
                break
            ids = continued(model.tokenizer, parent.tokens, _with_beginning(following, form, beginning))
            return self._question_prompt(ids, parent, beginning, form, following, model)
        following = model.tokenizer.chat_text(self.messages, generation_prompt=True, tools=self.tools.shown)
        ids = model.tokenizer.encode(_with_beginning(following, form, beginning))
        return self._question_prompt(ids, None, beginning, form, following, model)

    def key_after(self, prompt: QuestionPrompt, response: Response) -> bytes:
        """Returns the key of the conversation with this answer."""
        return _conversation_keys(self.tools.shown, (*self.messages, self.assistant_turn(prompt, response).message))[-1]

    def shown(self, prompt: QuestionPrompt, model: Model) -> ShownText:
        """Returns a tracker of the answer's text while the answer is drawn."""
        return ShownText(
            prompt.decode or model.tokenizer.decode,
            beginning=prompt.text,
            stops=self.stops,
            calls=prompt.form.tools if self.tools.may_be_called(prompt.form) else None,
            thoughts=prompt.form.thoughts,
            in_thought=prompt.in_thought,
        )

    def assistant_turn(self, prompt: QuestionPrompt, response: Response) -> AssistantTurn:
        """Splits a response into the thought, text and calls for the client."""
        text = text_of(prompt, response, self.stops)
        thought = None
        if prompt.form.thoughts is not None:
            thought, text = prompt.form.thoughts.split(text, opened=prompt.in_thought)
            thought = thought or None  # an empty thought is not shown
        if self.tools.may_be_called(prompt.form):
            text, calls = prompt.form.tools.split(text, self.tools.parameters)
            if calls:
                # A form without an end mark for each call is drawn to the end of all calls; the client requested a
                # single one.
                calls = calls if self.tools.parallel else calls[:1]
                return AssistantTurn(text=text, thought=thought, calls=calls, finish="tool_calls")
        return AssistantTurn(text=text, thought=thought, finish=response.finish)

    def _question_prompt(
        self,
        ids: Sequence[int],
        parent: RecordedTurn | None,
        beginning: str,
        form: AnswerForm,
        template_text: str,
        model: Model,
    ) -> QuestionPrompt:
        """Builds the prompt of these ids: `beginning` is the forced start of the answer, `template_text` the text
        before it.
        """
        thoughts = form.thoughts
        if beginning:  # a call, never preceded by a thought
            form = replace(form, thoughts=None)
        return QuestionPrompt(
            ids=ids,
            parent=parent,
            text=beginning,
            form=form,
            in_thought=thoughts is not None
            and not beginning
            and (thoughts.always or _begins_thought(template_text, thoughts)),
            ends=self.tools.stops(form.tools),
            decode=form.decoder(model.tokenizer),
        )


def _begins_thought(template_text: str, thoughts: ThoughtForm) -> bool:
    """True if the template begins a thought for the model."""
    return template_text.rstrip().endswith(thoughts.opens)


def _with_beginning(template_text: str, form: AnswerForm, beginning: str) -> str:
    """Appends the answer's forced beginning to the template's text, after closing a thought begun by the template."""
    if beginning and form.thoughts is not None and _begins_thought(template_text, form.thoughts):
        return f"{template_text}{form.thoughts.closes}\n\n{beginning}"
    return template_text + beginning


def _conversation_keys(tools: str, messages: Sequence[Message]) -> list[bytes]:
    """Returns the key of each beginning of the conversation, indexed by the number of messages."""
    keys = [digest_of(tools.encode())]
    for message in messages:
        keys.append(digest_of(keys[-1], _identity(message)))
    return keys


def _identity(message: Message) -> bytes:
    """Returns the parts of a message that identify it: not the ids of tool calls, because clients may rename them."""
    extra: dict[str, Any] = json_decoder(dict[str, Any]).decode(message.extra) if message.extra else {}
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in extra.get("tool_calls") or ()]
    return msgspec.json.encode([message.role, message.content, extra.get("name"), calls], order="deterministic")
