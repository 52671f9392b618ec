"""`WordUnderWay` builds a word from pieces: quoted texts and values of variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rftd.daemon.config.source import SourcePlace
from rftd.daemon.config.verl.shell.word import MOST_CANDIDATES, ShellWord

MOST_CHARS: Final = 1 << 20
"""Maximum expansion of all words together: variables may double one another."""


class ExpandedChars:
    """Counts the characters of all expanded words of a script."""

    def __init__(self) -> None:
        self._chars = 0

    def add(self, count: int) -> bool:
        """Adds `count` characters; False once over the limit."""
        self._chars += count
        return self._chars <= MOST_CHARS


@dataclass(frozen=True, slots=True)
class Piece:
    """A fragment of a word: a literal text, or the value of an expansion with its possible texts."""

    text: str
    """The text, as far as known."""
    unknown: str = ""
    """Reason why the text is unknown; empty for a known text."""
    candidates: tuple[str, ...] = ()
    """Possible texts of an unknown piece."""
    words: tuple[ShellWord, ...] | None = None
    """The words of a whole list, possibly empty; None for text."""


def as_text_piece(piece: Piece) -> Piece:
    """Converts a list to text, as within quotes: words separated by blanks."""
    if piece.words is None:
        return piece
    why = next((word.unknown for word in piece.words if word.unknown), "")
    return Piece(" ".join(word.text for word in piece.words), why)


class WordUnderWay:
    """A word being built: its text, and its possible texts."""

    def __init__(self) -> None:
        self.unknown = ""
        self._done: list[str] = []
        self._text: str | None = None
        self._options: list[str] | None = [""]
        self._certain_chars = 0

    @property
    def is_empty(self) -> bool:
        """True before the first piece, even an empty text in quotes."""
        return self._text is None and not self._done

    def add(self, piece: Piece) -> None:
        """Appends a piece to the word, extending its known text and every possible text."""
        piece = as_text_piece(piece)
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
        """Appends several words; the first one continues the word being built."""
        for number, fragment in enumerate(parts):
            if number:
                self._done.append(self._text or "")
                self._text = None
                self._options = [""]
                self._certain_chars = 0
            self.add(Piece(fragment))

    def piece(self) -> Piece:
        """Returns the word built until now as a piece of another word."""
        return Piece(self._text or "", self.unknown, tuple(self._options or ()) if self.unknown else ())

    def finished(self, position: SourcePlace) -> list[ShellWord]:
        """Returns the finished words: completed ones, and the last with its possible texts."""
        done = [ShellWord(text, position) for text in self._done]
        candidates = tuple(dict.fromkeys(self._options or ())) if self.unknown else ()
        return [*done, ShellWord(self._text or "", position, self.unknown, candidates, self._certain_chars)]
