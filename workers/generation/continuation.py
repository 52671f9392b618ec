"""Prompts of continued conversations: the ids of earlier turns as they were drawn, then the text of the new messages.

Drawn text is never encoded again: different ids of equal text would be trained under the log-probabilities of the drawn
ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.ops.errors import DataError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.tokenizer import Tokenizer
from rftd.workers.generation.response import Response

_MARK: Final = "\u2063rftd-answer-5d0c3b\u2063"
"""Placeholder for an answer while the template is rendered to find the text behind the answer."""


def text_after(tokenizer: Tokenizer, messages: Sequence[Message], count: int, *, tools: str = "") -> str | None:
    """Returns the template's text between the end of the answer `messages[count - 1]` and the assistant's next message.

    None if the template does not show the boundary: it refuses the conversation, or writes the answer twice or not at
    all.
    """
    marked = (*messages[: count - 1], Message("assistant", _MARK), *messages[count:])
    try:
        text = tokenizer.chat_text(marked, generation_prompt=True, tools=tools)
    except DataError:
        return None  # a template may demand a tool's call before each tool's result
    before, mark, after = text.partition(_MARK)
    return after if mark and before and _MARK not in after else None


def continued(tokenizer: Tokenizer, drawn: Sequence[int], text: str) -> list[int]:
    """Returns the prompt made of the ids of an earlier prompt and its answer, continued with a text."""
    ids = tokenizer.encode(text)
    # The template ends a message with the model's own end token, already present if the model drew it.
    if ids and ids[0] == drawn[-1] and ids[0] in tokenizer.eos_ids:
        ids = ids[1:]
    return [*drawn, *ids]


class DrawnAnswers:
    """The answers drawn by one rollout in chats, indexed by the conversations that end with them."""

    def __init__(self) -> None:
        self._drawn: dict[tuple[Message, ...], list[tuple[int, ...]]] = {}
        """Ids of prompts with their answers, by conversation."""

    def add(self, messages: Sequence[Message], reply_prefix: str, response: Response) -> None:
        """Records the answer to a conversation, under its text with the reply prefix and without."""
        if response.truncated:
            return
        ids = response.prompt + response.tokens
        for text in dict.fromkeys((response.text, reply_prefix + response.text)):
            self._drawn.setdefault((*messages, Message("assistant", text)), []).append(ids)

    def prompt(self, tokenizer: Tokenizer, messages: Sequence[Message], reply_prefix: str) -> list[int] | None:
        """Returns the prompt continuing the longest recorded beginning of a conversation; None without a recorded
        beginning.
        """
        conversation = tuple(messages)
        for count in range(len(conversation) if self._drawn else 0, 0, -1):
            drawn = self._drawn.get(conversation[:count])
            if drawn is None:
                continue
            text = text_after(tokenizer, conversation, count)
            if text is None:
                return None
            # Of answers with equal texts the first recorded is continued first, so each of two conversations gets its
            # own ids.
            ids = drawn.pop(0) if len(drawn) > 1 else drawn[0]
            return continued(tokenizer, ids, text + reply_prefix)
        return None
