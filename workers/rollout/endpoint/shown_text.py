"""`ShownText`: as much of an answer's text as a client may be shown while the answer is still drawn.

Held back are the end of a character whose bytes are not all there, what may be the beginning of a stop text or of a
tool's call, and white space before such a call: what a client was shown is the beginning of what it is told at last.
"""

from __future__ import annotations

from collections.abc import Sequence

from rftd.ops.errors import RolloutError
from rftd.workers.tasksets.tokenizer import Tokenizer

_BROKEN = "\ufffd"
"""What a decoder shows for a part of a character."""


class ShownText:
    """The text of one answer, as it grows."""

    def __init__(self, tokenizer: Tokenizer, *, beginning: str, stops: Sequence[str], opens: str) -> None:
        """`beginning` is shown before what is drawn; `opens` begins a tool's call, and is empty without tools."""
        self._tokenizer = tokenizer
        self._told = len(beginning)
        self._text = beginning
        self._stops = tuple(stops)
        self._opens = opens
        self._ids: list[int] = []
        """The last ids whose text was taken, and those after them."""
        self._taken = 0
        """How many of these were taken."""
        self.shown = ""

    def more(self, tokens: Sequence[int]) -> str:
        """What may be shown now, after these tokens."""
        self._ids += tokens
        # Of the ids before, too: a decoder may treat the first of a text otherwise.
        before = self._tokenizer.decode(self._ids[: self._taken])
        text = self._tokenizer.decode(self._ids)
        if len(text) <= len(before) or text.endswith(_BROKEN):
            return ""
        self._text += text[len(before) :]
        self._ids = self._ids[self._taken :]
        self._taken = len(self._ids)
        return self._show(self._text[: self._end()])

    def rest(self, text: str) -> str:
        """What is still to be shown of the whole text. Raises RolloutError if something else was shown."""
        if not text.startswith(self.shown):
            raise RolloutError("the text of an answer is another one than that of its parts")
        return self._show(text)

    def _show(self, text: str) -> str:
        new = text[len(self.shown) :]
        self.shown += new
        return new

    def _end(self) -> int:
        """Where what is certain ends. Nothing that was shown is looked at again: it holds no stop text and no call."""
        text = self._text
        end = len(text)
        for stop in self._stops:
            end = min(end, _held(text, stop, max(self._told, len(self.shown))))
        if self._opens:
            end = min(end, _held(text, self._opens, len(self.shown)))
            end = len(text[:end].rstrip())
        return max(end, len(self.shown))


def _held(text: str, mark: str, begin: int) -> int:
    """Where `mark` is from `begin` on, or where the end of the text may become one."""
    at = text.find(mark, begin)
    if at >= 0:
        return at
    for size in range(min(len(mark) - 1, len(text) - begin), 0, -1):
        if text.endswith(mark[:size]):
            return len(text) - size
    return len(text)
