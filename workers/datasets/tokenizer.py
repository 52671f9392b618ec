"""`Tokenizer`: the interface of explorer and trainer to any conversion between text and token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from rftd.ops.errors import DataError
from rftd.workers.datasets.message import Message

NO_TEMPLATE: Final = "the model has no chat template"
"""Text of the error for a model without a chat template."""


def no_template(folder: str, *, field: str | None = None) -> DataError:
    """Returns the error for rendering a conversation without a chat template in the model folder."""
    return DataError(
        NO_TEMPLATE,
        where=folder,
        field=field,
        fix="set model.custom_chat_template, or for texts without a template format.prompt_type: raw",
    )


class Tokenizer(Protocol):
    """Converts text to token ids and back; equal texts give equal ids in every process."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a response, the usual one first; empty for a model without any."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Returns the ids of a text; `special` prepends the model's beginning-of-sequence ids, for text outside a chat
        template.
        """
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Returns the text of ids, without special tokens unless `special` is true."""
        ...

    def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool, tools: str = "") -> str:
        """Returns the conversation rendered by the chat template; `generation_prompt` opens the assistant's next
        message.

        `tools` is a JSON list of the assistant's tools. Raises DataError without a chat template, or if the template
        refuses the messages.
        """
        ...

    def marked_text(self, messages: Sequence[Message], *, tools: str = "") -> tuple[tuple[str, bool], ...] | None:
        """Returns the rendered conversation in pieces, True for those the template marks as the assistant's (`{%
        generation %}`).

        None for a template without marks. Raises DataError like `chat_text`.
        """
        ...
