"""`WordUnderWay` puts a word together of its pieces: quoted texts and what variables hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rftd.daemon.config.source import SourcePlace
from rftd.daemon.config.verl.shell.word import MOST_CANDIDATES, ShellWord

MOST_CHARS: Final = 1 << 20
"""What all words together may expand to: variables may double one another."""


class ExpandedChars:
    """Counts what all words of a script expand to."""

    def __init__(self) -> None:
        self._chars = 0

    def add(self, count: int) -> bool:
        """False once it is too much."""
        self._chars += count
        return self._chars <= MOST_CHARS


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word."""

    text: str
    unknown: str = ""
    """The reason why it is not known; empty if it is."""
    candidates: tuple[str, ...] = ()
    words: tuple[ShellWord, ...] | None = None
    """The words in its place if it is a whole list, which may be empty."""


def joined(piece: Piece) -> Piece:
    """A list within quotes or a text: its words with blanks between them."""
    if piece.words is None:
        return piece
    why = next((word.unknown for word in piece.words if word.unknown), "")
    return Piece(" ".join(word.text for word in piece.words), why)


class WordUnderWay:
    """A word that is put together: its known text, and the texts that it may have."""

    def __init__(self) -> None:
        self.unknown = ""
        self._done: list[str] = []
        self._text: str | None = None
        self._options: list[str] | None = [""]
        self._certain_chars = 0

    @property
    def is_empty(self) -> bool:
        """True while nothing is in it, not even an empty text in quotes."""
        return self._text is None and not self._done

    def add(self, piece: Piece) -> None:
        """Puts a piece behind the others."""
        piece = joined(piece)
        self._text = (self._text or "") + piece.text
        if not self.unknown and not piece.unknown:
            self._certain_chars = len(self._text)
        texts: Sequence[str] = piece.candidates if piece.unknown else (piece.text,)
        if self._options is not None:
            self._options = [before + text for before in self._options for text in texts] if texts else None
            if self._options is not None and len(self._options) > MOST_CANDIDATES:
                self._options = None
        self.unknown = self.unknown or piece.unknown

    def add_parts(self, parts: Sequence[str]) -> None:
        """Puts words behind the others, of which the first goes on with the last one."""
        for number, part in enumerate(parts):
            if number:
                self._done.append(self._text or "")
                self._text = None
                self._options = [""]
                self._certain_chars = 0
            self.add(Piece(part))

    def piece(self) -> Piece:
        """All of it as a piece of another word."""
        return Piece(self._text or "", self.unknown, tuple(self._options or ()) if self.unknown else ())

    def finished(self, place: SourcePlace) -> list[ShellWord]:
        """The words."""
        done = [ShellWord(text, place) for text in self._done]
        candidates = tuple(dict.fromkeys(self._options or ())) if self.unknown else ()
        return [*done, ShellWord(self._text or "", place, self.unknown, candidates, self._certain_chars)]
