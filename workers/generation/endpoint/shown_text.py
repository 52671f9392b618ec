"""`ShownText`: the part of an unfinished answer that can be sent to the client, because later tokens cannot change it.

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

_INCOMPLETE_CHARACTER = "\ufffd"
"""A decoder's output for an incomplete character."""


class ShownParts(NamedTuple):
    """Parts of an answer to be sent to the client next: thought and text, either possibly empty."""

    thought: str
    """Next part of the model's thought."""
    text: str
    """Next part of the answer after the thought."""


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
        """Follows one answer, from drawn token ids converted to text by `decode`.

        `beginning` is text of the answer before the drawn text; `stops` are texts ending the answer; `calls` is the
        form of tools' calls, `thoughts` that of thoughts, each None where not recognised; `in_thought` is True if the
        prompt began a thought.
        """
        self._decode = decode
        self._beginning_chars = len(beginning)
        """Characters of the forced beginning."""
        self._whole_text = beginning
        """Text decoded so far, after the beginning."""
        self._stops = tuple(stops)
        """Texts that end the answer."""
        self._tool_form = calls
        """Form of tool calls; None: calls are not searched."""
        self._thought_form = thoughts
        """Form of thoughts; None: the answer has none."""
        self._prompt_opens_thought = in_thought
        """True if the prompt began a thought."""
        self._thought_begun = False
        """True once the text of a thought has begun."""
        self._answer_begun = thoughts is None
        """True once the thought is over, or found to be absent."""
        self._shown_end = 0
        """Offset in the whole text up to which text was shown or skipped."""
        self._answer_start = 0
        """Offset in the whole text at which the answer begins, after the thought."""
        self._last_ids: list[int] = []
        """Ids of the text decoded last, and the ids after them."""
        self._decoded_ids = 0
        """Number of leading `_last_ids` already decoded into the text."""
        self.thought = ""
        """Part of the thought sent so far."""
        self.shown = ""
        """Part of the answer sent so far."""

    def add(self, tokens: Sequence[int]) -> ShownParts:
        """Adds tokens; returns the parts of the answer that no later token can change."""
        self._last_ids += tokens
        # Decoded together with the previous ids: a decoder may treat the first token of a text differently.
        before = self._decode(self._last_ids[: self._decoded_ids])
        text = self._decode(self._last_ids)
        if len(text) <= len(before) or text.endswith(_INCOMPLETE_CHARACTER):
            return ShownParts("", "")
        self._whole_text += text[len(before) :]
        self._last_ids = self._last_ids[self._decoded_ids :]
        self._decoded_ids = len(self._last_ids)
        return self._next_parts()

    def finish(self, text: str, thought: str | None = None) -> ShownParts:
        """Returns the parts still unsent of the complete answer. Raises RolloutError if parts sent before differ from
        it.
        """
        thought = thought or ""
        if not text.startswith(self.shown) or not thought.startswith(self.thought):
            raise RolloutError("the text of an answer differs from the text of its parts")
        return self._count_as_shown(thought[len(self.thought) :], text[len(self.shown) :])

    def _count_as_shown(self, thought: str, text: str) -> ShownParts:
        """Adds parts to the text sent so far, and returns them."""
        self.thought += thought
        self.shown += text
        return ShownParts(thought, text)

    def _next_parts(self) -> ShownParts:
        """Returns the parts that can be sent now. Text already shown is not searched again: it contains no mark."""
        end = len(self._whole_text)
        for stop in self._stops:
            end = min(end, _mark_offset(self._whole_text, stop, max(self._beginning_chars, self._shown_end), end))
        thought = "" if self._answer_begun else self._next_thought(end)
        return self._count_as_shown(thought, self._next_answer(end) if self._answer_begun else "")

    def _next_thought(self, end: int) -> str:
        """Returns the part of the thought before offset `end` that can be sent now."""
        form = self._thought_form
        assert form is not None
        if not self._thought_begun:
            blank = len(self._whole_text) - len(self._whole_text.lstrip())
            begun = self._whole_text[blank:end]
            if begun.startswith(form.opens):
                self._shown_end = blank + len(form.opens)
            elif form.opens.startswith(begun):
                return ""
            elif not self._prompt_opens_thought:
                self._answer_begun = True
                return ""
            self._thought_begun = True
        at = _mark_offset(self._whole_text, form.closes, self._shown_end, end)
        thought = self._whole_text[self._shown_end : at]
        self._shown_end = at
        if self._whole_text.startswith(form.closes, at, end):
            self._shown_end = at + len(form.closes)
            self._answer_start = self._shown_end
            self._answer_begun = True
        return thought

    def _next_answer(self, end: int) -> str:
        """Returns the part of the answer before offset `end` that can be sent now."""
        form = self._tool_form
        if form is not None:
            answer_start = self._whole_text[self._answer_start : end].lstrip() if not self.shown else ""
            if not self.shown and form.starts and (not answer_start or answer_start.startswith(form.starts)):
                return ""
            if form.opens:
                end = _mark_offset(self._whole_text, form.opens, self._shown_end, end)
            end = len(self._whole_text[:end].rstrip())
        text = self._whole_text[self._shown_end : end]
        self._shown_end = max(end, self._shown_end)
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
