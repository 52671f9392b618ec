"""`ShellWord` is a word of a command: its text, or its possible texts with the reason for the uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rftd.daemon.config.issue import Issue
from rftd.daemon.config.source import SourcePlace

MOST_CANDIDATES: Final = 16
"""Maximum number of possible texts; more count as none known."""


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word of a command; a variable that the script does not assign appears as `${oc.env:NAME}`."""

    text: str
    """The text, as far as known."""
    place: SourcePlace
    """Position in the script."""
    unknown: str = ""
    """Reason why the text is unknown; empty for a known text."""
    candidates: tuple[str, ...] = ()
    """Possible texts of an unknown word; an empty text stands for an absent word."""
    certain_chars: int = 0
    """Number of leading characters known for certain."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All possible texts; empty if nothing is known."""
        return self.candidates if self.unknown else (self.text,)


class ShellProblem(Exception):
    """Raised with an issue if the script cannot be read any further."""

    def __init__(self, issue: Issue) -> None:
        super().__init__(issue.what)
        self.issue = issue


def uncertain(word: ShellWord, why: str, candidates: Sequence[str]) -> ShellWord:
    """Returns the word marked as unknown for the reason `why`, with its possible texts; too many texts count as none
    known.
    """
    distinct = tuple(dict.fromkeys(candidates))
    return replace(word, unknown=why, candidates=distinct if len(distinct) <= MOST_CANDIDATES else ())


def merged_words(lists: Sequence[Sequence[ShellWord]], why: str) -> list[ShellWord]:
    """Merges alternative word lists: common leading words are certain, all others may be absent for the
    reason `why`.
    """
    first = lists[0]
    common = 0
    while all(len(words) > common and _are_equal(words[common], first[common]) for words in lists):
        common += 1
    tails = [words[common:] for words in lists]
    merged = list(first[:common])
    for key in dict.fromkeys(_key(word) for tail in tails for word in tail):
        texts: list[str] = []
        whole = True
        for tail in tails:
            of_key = [word for word in tail if _key(word) == key]
            # The last word of a key counts.
            texts += of_key[-1].texts if of_key else [""]
            whole = whole and (not of_key or bool(of_key[-1].texts))
        word = next(word for tail in tails for word in tail if _key(word) == key)
        if len(set(texts)) == 1 and whole:
            merged.append(replace(word, text=texts[0], unknown="", candidates=()))
        else:
            merged.append(uncertain(word, word.unknown or why, texts if whole else ()))
    return merged


def _are_equal(word: ShellWord, second: ShellWord) -> bool:
    """True for words with equal texts and possible texts, whatever their positions."""
    return (word.text, word.unknown, word.candidates) == (second.text, second.unknown, second.candidates)


def _key(word: ShellWord) -> str:
    """Returns the identity of a word: the name before the `=`, or the whole text."""
    return word.text.partition("=")[0].lstrip("+") if "=" in word.text else word.text
