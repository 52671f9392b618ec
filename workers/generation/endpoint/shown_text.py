"""`ShownText`: the part of an unfinished answer fit to be sent to the client.

Held back are the end of an incomplete character, a possible beginning of a stop text, of a mark around a thought or of
a tool's call, and white space before such a call. The text sent so far is therefore always a prefix of the final text,
wherever the drawn pieces end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rftd.ops.errors import RolloutError
from rftd.workers.generation.endpoint.answer_form import ThoughtForm
from rftd.workers.generation.endpoint.tool_calls import ToolForm

_BROKEN = "\ufffd"
"""A decoder's output for an incomplete character."""


class ShownParts(NamedTuple):
    """Newly certain parts of an answer, to be sent to the client: thought and text, either possibly empty."""

    thought: str
    text: str


class ShownText:
    """Text of one growing answer, split into parts that can be sent because later tokens cannot change them."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        beginning: str = "",
        stops: Sequence[str] = (),
        calls: ToolForm | None = None,
        thoughts: ThoughtForm | None = None,
        in_thought: bool = False,
    ) -> None:
        """`beginning` is shown before drawn text; `calls` is the form of calls, None where calls are not recognised."""
        self._decode = decode
        self._beginning_chars = len(beginning)
        self._text = beginning
        self._stops = tuple(stops)
        self._calls = calls
        self._thoughts = thoughts
        self._in_thought = in_thought
        """True: the prompt began a thought."""
        self._thinking = False
        self._in_answer = thoughts is None
        """True: the thought is over, or there is none."""
        self._at = 0
        """Offset in the text up to which text was shown or skipped."""
        self._answer_at = 0
        self._ids: list[int] = []
        """Ids of the last decoded text, and the ids after them."""
        self._decoded = 0
        """Number of leading `_ids` already decoded into the text."""
        self.thought = ""
        """Part of the thought sent until now."""
        self.shown = ""
        """Part of the answer sent until now."""

    def more(self, tokens: Sequence[int]) -> ShownParts:
        """Adds tokens and returns the text newly certain."""
        self._ids += tokens
        # Decoded together with the previous ids: a decoder may treat the first token of a text differently.
        before = self._decode(self._ids[: self._decoded])
        text = self._decode(self._ids)
        if len(text) <= len(before) or text.endswith(_BROKEN):
            return ShownParts("", "")
        self._text += text[len(before) :]
        self._ids = self._ids[self._decoded :]
        self._decoded = len(self._ids)
        return self._next()

    def rest(self, text: str, thought: str | None = None) -> ShownParts:
        """Returns the rest of the complete text. Raises RolloutError if the text shown before differs from it."""
        thought = thought or ""
        if not text.startswith(self.shown) or not thought.startswith(self.thought):
            raise RolloutError("the text of an answer differs from the text of its parts")
        return self._show(thought[len(self.thought) :], text[len(self.shown) :])

    def _show(self, thought: str, text: str) -> ShownParts:
        self.thought += thought
        self.shown += text
        return ShownParts(thought, text)

    def _next(self) -> ShownParts:
        """Returns the text newly certain. Text already shown is not searched again: it contains no mark."""
        end = len(self._text)
        for stop in self._stops:
            end = min(end, _mark_offset(self._text, stop, max(self._beginning_chars, self._at), end))
        thought = "" if self._in_answer else self._think(end)
        return self._show(thought, self._answer(end) if self._in_answer else "")

    def _think(self, end: int) -> str:
        """Returns the newly certain part of the thought."""
        form = self._thoughts
        assert form is not None
        if not self._thinking:
            blank = len(self._text) - len(self._text.lstrip())
            begun = self._text[blank:end]
            if begun.startswith(form.opens):
                self._at = blank + len(form.opens)
            elif form.opens.startswith(begun):
                return ""
            elif not self._in_thought:
                self._in_answer = True
                return ""
            self._thinking = True
        at = _mark_offset(self._text, form.closes, self._at, end)
        thought = self._text[self._at : at]
        self._at = at
        if self._text.startswith(form.closes, at, end):
            self._at = at + len(form.closes)
            self._answer_at = self._at
            self._in_answer = True
        return thought

    def _answer(self, end: int) -> str:
        """Returns the newly certain part of the answer."""
        form = self._calls
        if form is not None:
            answer_start = self._text[self._answer_at : end].lstrip() if not self.shown else ""
            if not self.shown and form.starts and (not answer_start or answer_start.startswith(form.starts)):
                return ""
            if form.opens:
                end = _mark_offset(self._text, form.opens, self._at, end)
            end = len(self._text[:end].rstrip())
        text = self._text[self._at : end]
        self._at = max(end, self._at)
        return text


def _mark_offset(text: str, mark: str, begin: int, end: int) -> int:
    """Returns the offset of `mark` in `text[begin:end]`, or of a suffix that may grow into the mark; else `end`."""
    at = text.find(mark, begin, end)
    if at >= 0:
        return at
    for size in range(min(len(mark) - 1, end - begin), 0, -1):
        if text.startswith(mark[:size], end - size, end):
            return end - size
    return end
