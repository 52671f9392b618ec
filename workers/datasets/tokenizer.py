"""`Tokenizer`: what the explorer and the trainer ask of whatever turns text into ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from rftd.ops.errors import DataError
from rftd.workers.datasets.message import Message

NO_TEMPLATE: Final = "the model has no chat template"


def no_template(folder: str, *, field: str | None = None) -> DataError:
    """The error that a conversation is to be rendered for a model folder without a chat template."""
    return DataError(
        NO_TEMPLATE,
        where=folder,
        field=field,
        fix="set model.custom_chat_template, or for texts without a template format.prompt_type: raw",
    )


class Tokenizer(Protocol):
    """Text to ids and back. Pure: the same text gives the same ids in every process."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a response, the usual one first; empty if the model has none."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text; `special` adds what the model expects at the start of a bare text (a chat has it)."""
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, without special tokens unless `special` asks for them."""
        ...

    def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool, tools: str = "") -> str:
        """The conversation in the model's template; `generation_prompt` opens the assistant's next message.

        `tools` is a JSON list of what the assistant may call. Raises DataError if the model has no chat template or the
        template refuses the messages.
        """
        ...

    def marked_text(self, messages: Sequence[Message], *, tools: str = "") -> tuple[tuple[str, bool], ...] | None:
        """The conversation in pieces, True for those that the template marks as the assistant's (`{% generation %}`).

        None if the template marks nothing. Raises DataError as `chat_text` does.
        """
        ...
