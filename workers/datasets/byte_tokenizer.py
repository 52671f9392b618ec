"""`ByteTokenizer`: one id per byte, and one for the end of a response; a complete tokenizer without any file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.workers.datasets.message import Message

EOS: Final = 256
"""Id of the end of a response."""
VOCABULARY: Final = 257
"""Number of token ids: one for each byte, and the end of a response."""


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255; ids above are dropped by decoding."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Returns the one id after the bytes."""
        return (EOS,)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Returns the UTF-8 bytes of the text as ids; `special` has no effect."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Returns the text of the ids, with invalid bytes as the replacement character; `special` has no effect."""
        return bytes(token for token in tokens if 0 <= token < EOS).decode(errors="replace")

    def chat_text(self, messages: Sequence[Message], *, generation_prompt: bool, tools: str = "") -> str:
        """Returns the messages, each as `role: content` on a separate line, after the tools."""
        text = f"tools: {tools}\n" if tools else ""
        text += "".join(f"{message.role}: {message.content}\n" for message in messages)
        return text + "assistant: " if generation_prompt else text

    def marked_text(self, messages: Sequence[Message], *, tools: str = "") -> None:
        """Returns None: this template has no marks."""
        return None
