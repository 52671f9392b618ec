"""When a response ends: an end-of-sequence token, a stop text, or its limit."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


class StopTexts:
    """Finds stop texts in the tokens drawn so far, decoding only where the last token could complete one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def ends(self, tokens: Sequence[int], stops: Sequence[str]) -> bool:
        """True if the last token completed one of `stops`."""
        if not any(self._could_end(tokens[-1], stop) for stop in stops):
            return False
        # Four bytes a character, one token a byte, is the most that a stop text can be spread over.
        tail = list(tokens[-(4 * max(map(len, stops)) + 8) :])
        text, before = self._decode(tail), self._decode(tail[:-1])
        return any(text.count(stop) > before.count(stop) for stop in stops)

    def _could_end(self, token: int, stop: str) -> bool:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._decode([token])
        # A decoder may drop a space at the start, and show part of a character as U+FFFD.
        return stop[-1] in piece or stop[-1].isspace() or "\ufffd" in piece or not piece

    def _decode(self, tokens: list[int]) -> str:
        text = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text
