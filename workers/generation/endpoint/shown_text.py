"""`ShownText`: as much of an answer as a client may be shown while the answer is still drawn.

Held back are the end of a character whose bytes are not all there, what may be the beginning of a stop text, of a mark
around a thought, or of a tool's call, and white space before such a call: what a client was shown is the beginning of
what it is told at last, wherever the parts in which it was drawn end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rftd.ops.errors import RolloutError
from rftd.workers.generation.endpoint.answer_form import ThoughtForm
from rftd.workers.generation.endpoint.tool_calls import ToolForm

_BROKEN = "\ufffd"
"""What a decoder shows for a part of a character."""


class ShownParts(NamedTuple):
    """The text that may be shown next."""

    thought: str
    text: str


class ShownText:
    """The text of one answer, as it grows."""

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
        """`beginning` is shown before what is drawn; `calls` is the form of calls, None where none are looked for."""
        self._decode = decode
        self._told = len(beginning)
        self._text = beginning
        self._stops = tuple(stops)
        self._calls = calls
        self._thoughts = thoughts
        self._in_thought = in_thought
        """The prompt began a thought."""
        self._thinking = False
        self._answers = thoughts is None
        """The thought is over, or there is none."""
        self._done = 0
        """The place in the text up to which it was shown or passed over."""
        self._answer_at = 0
        self._ids: list[int] = []
        """The last ids whose text was taken, and those after them."""
        self._taken = 0
        """How many of these were taken."""
        self.thought = ""
        """The part of the thought that was shown."""
        self.shown = ""
        """The part of the answer that was shown."""

    def more(self, tokens: Sequence[int]) -> ShownParts:
        """What may be shown now, after these tokens."""
        self._ids += tokens
        # Of the ids before, too: a decoder may treat the first of a text otherwise.
        before = self._decode(self._ids[: self._taken])
        text = self._decode(self._ids)
        if len(text) <= len(before) or text.endswith(_BROKEN):
            return ShownParts("", "")
        self._text += text[len(before) :]
        self._ids = self._ids[self._taken :]
        self._taken = len(self._ids)
        return self._next()

    def rest(self, text: str, thought: str | None = None) -> ShownParts:
        """The rest of the whole that is still to be shown. Raises RolloutError if something else was shown."""
        thought = thought or ""
        if not text.startswith(self.shown) or not thought.startswith(self.thought):
            raise RolloutError("the text of an answer is another one than that of its parts")
        return self._show(thought[len(self.thought) :], text[len(self.shown) :])

    def _show(self, thought: str, text: str) -> ShownParts:
        self.thought += thought
        self.shown += text
        return ShownParts(thought, text)

    def _next(self) -> ShownParts:
        """The text that is certain by now. Nothing that was shown is looked at again: it holds no mark."""
        end = len(self._text)
        for stop in self._stops:
            end = min(end, _held(self._text, stop, max(self._told, self._done), end))
        thought = "" if self._answers else self._think(end)
        return self._show(thought, self._answer(end) if self._answers else "")

    def _think(self, end: int) -> str:
        """The part of the thought that is certain."""
        form = self._thoughts
        assert form is not None
        if not self._thinking:
            blank = len(self._text) - len(self._text.lstrip())
            begun = self._text[blank:end]
            if begun.startswith(form.opens):
                self._done = blank + len(form.opens)
            elif form.opens.startswith(begun):
                return ""
            elif not self._in_thought:
                self._answers = True
                return ""
            self._thinking = True
        at = _held(self._text, form.closes, self._done, end)
        thought = self._text[self._done : at]
        self._done = at
        if self._text.startswith(form.closes, at, end):
            self._done = at + len(form.closes)
            self._answer_at = self._done
            self._answers = True
        return thought

    def _answer(self, end: int) -> str:
        """The part of the answer that is certain."""
        form = self._calls
        if form is not None:
            said = self._text[self._answer_at : end].lstrip() if not self.shown else ""
            if not self.shown and form.starts and (not said or said.startswith(form.starts)):
                return ""
            if form.opens:
                end = _held(self._text, form.opens, self._done, end)
            end = len(self._text[:end].rstrip())
        text = self._text[self._done : end]
        self._done = max(end, self._done)
        return text


def _held(text: str, mark: str, begin: int, end: int) -> int:
    """The place of `mark` in `text[begin:end]`, or of an end that may become one."""
    at = text.find(mark, begin, end)
    if at >= 0:
        return at
    for size in range(min(len(mark) - 1, end - begin), 0, -1):
        if text.startswith(mark[:size], end - size, end):
            return end - size
    return end
