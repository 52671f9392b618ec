"""Texts in pieces, some of them marked: the answer read by the reward, and words of one answer alone in its group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from rftd.daemon.http.views.text import RolloutText, TextPart

Mark = Literal["", "extracted", "alone"]
"""`extracted`: read by the reward; `alone`: a word of no other answer in the group."""
_WORD: Final = re.compile(r"\w+(?:[.,]\d+)*")
"""Pattern of a word or a number, with decimal points and separators of thousands."""
_MOST_MARKS: Final = 2_000
"""Maximum number of marked words in one text."""


class TextPiece(NamedTuple):
    """A piece of a text, with its mark; empty for none."""

    text: str
    """Text of the piece."""
    mark: Mark
    """Mark of the piece; empty for none."""


class ShownPart(NamedTuple):
    """A part of an answer in pieces, with its writer."""

    part: TextPart
    """The part as read from the answer."""
    pieces: list[TextPiece]
    """Pieces of the part, in order, with all its text."""


def parts_of(rollout: RolloutText, group: Sequence[RolloutText]) -> list[list[ShownPart]]:
    """Returns the answer of each turn in parts; words of drawn parts are marked against the group's other answers."""
    compared = [text for text in group if text.experience.id != rollout.experience.id and text.turns]
    # A drawn part may end with the end mark; the whole answer has none, and no mark is a word.
    answer = _words("\n".join(turn.answer for turn in rollout.turns))
    alone = words_alone(_drawn(rollout), (_drawn(text) for text in compared)) & answer if compared else frozenset()
    last = _last_with(rollout)
    return [
        [
            ShownPart(part, _pieces(part, alone, rollout.extracted if (turn_number, number) == last else None))
            for number, part in enumerate(turn.parts)
        ]
        for turn_number, turn in enumerate(rollout.turns)
    ]


def has_alone(turns: Sequence[Sequence[ShownPart]]) -> bool:
    """Returns True for parts with a marked word of no other answer."""
    return any(piece.mark == "alone" for parts in turns for shown in parts for piece in shown.pieces)


def words_alone(answer: str, compared: Iterable[str]) -> frozenset[str]:
    """Returns the words of an answer, in lower case, occurring in none of the compared texts."""
    words = _words(answer)
    for text in compared:
        if not words:
            break
        words -= _words(text)
    return words


def differing(text: str, compared: str) -> list[TextPiece]:
    """Returns a text in pieces, its words missing in the compared text marked."""
    return list(_with_words(text, words_alone(text, (compared,))))


def holds_truth(rollout: RolloutText, truth: str | None) -> bool:
    """Returns True for an answer with the truth as a word in drawn text, read by the reward as another answer."""
    if not truth or rollout.extracted is None or rollout.extracted.strip() == truth.strip():
        return False
    return re.search(rf"(?<!\w){re.escape(truth.strip())}(?!\w)", _drawn(rollout)) is not None


def _words(text: str) -> frozenset[str]:
    """Returns the distinct words and numbers of a text, in one case."""
    return frozenset(match[0].casefold() for match in _WORD.finditer(text))


def _drawn(rollout: RolloutText) -> str:
    """Returns the texts drawn by the model in a rollout, one line each."""
    return "\n".join(part.text for turn in rollout.turns for part in turn.parts if part.by == "model")


def _last_with(rollout: RolloutText) -> tuple[int, int] | None:
    """Returns the numbers of turn and part with the last occurrence of the answer read by the reward."""
    if not rollout.extracted:
        return None
    numbers = [
        (turn_number, number)
        for turn_number, turn in enumerate(rollout.turns)
        for number, part in enumerate(turn.parts)
        if part.by == "model" and rollout.extracted in part.text
    ]
    return numbers[-1] if numbers else None


def _pieces(part: TextPart, alone: frozenset[str], extracted: str | None) -> list[TextPiece]:
    """Returns the pieces of a part; in a model's text, words and the extracted answer are marked."""
    if part.by != "model":
        return [TextPiece(part.text, "")]
    if not extracted:
        return list(_with_words(part.text, alone))
    start = part.text.rindex(extracted)
    end = start + len(extracted)
    return [
        *_with_words(part.text[:start], alone),
        TextPiece(extracted, "extracted"),
        *_with_words(part.text[end:], alone),
    ]


def _with_words(text: str, alone: frozenset[str]) -> Iterator[TextPiece]:
    """Yields a text in pieces with its words of `alone` marked."""
    end = marks = 0
    for match in _WORD.finditer(text) if alone else ():
        if match[0].casefold() not in alone:
            continue
        if match.start() > end:
            yield TextPiece(text[end : match.start()], "")
        yield TextPiece(match[0], "alone")
        end = match.end()
        marks += 1
        if marks == _MOST_MARKS:
            break
    if end < len(text):
        yield TextPiece(text[end:], "")
