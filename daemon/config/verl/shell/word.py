"""`ShellWord` is a word of a command: its text, or the texts that it may have and the reason why nobody knows which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rftd.daemon.config.issue import Issue
from rftd.daemon.config.source import SourcePlace

MOST_CANDIDATES: Final = 16


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word; a variable that the script does not assign is `${oc.env:NAME}` in it."""

    text: str
    place: SourcePlace
    unknown: str = ""
    """The reason why its text is not known; empty if it is."""
    candidates: tuple[str, ...] = ()
    """The texts that it may have, where it is not known; an empty one stands for no word at all."""
    certain_chars: int = 0
    """So much of the text is known from its beginning, where the rest is not."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that it may have; none if nothing is known of them."""
        return self.candidates if self.unknown else (self.text,)


class ShellProblem(Exception):
    """Signals that the script cannot be read on."""

    def __init__(self, issue: Issue) -> None:
        super().__init__(issue.what)
        self.issue = issue


def uncertain(word: ShellWord, why: str, candidates: Sequence[str]) -> ShellWord:
    """The word with other texts that it may have."""
    distinct = tuple(dict.fromkeys(candidates))
    return replace(word, unknown=why, candidates=distinct if len(distinct) <= MOST_CANDIDATES else ())


def merged_words(lists: Sequence[Sequence[ShellWord]], why: str) -> list[ShellWord]:
    """One list for several of which one holds: what all have in common is certain, the rest may be there or not."""
    first = lists[0]
    same = 0
    while all(len(words) > same and _equal(words[same], first[same]) for words in lists):
        same += 1
    rests = [words[same:] for words in lists]
    merged = list(first[:same])
    for key in dict.fromkeys(_key(word) for rest in rests for word in rest):
        texts: list[str] = []
        whole = True
        for rest in rests:
            of_key = [word for word in rest if _key(word) == key]
            # The last one of a key is the one that counts.
            texts += of_key[-1].texts if of_key else [""]
            whole = whole and (not of_key or bool(of_key[-1].texts))
        word = next(word for rest in rests for word in rest if _key(word) == key)
        if len(set(texts)) == 1 and whole:
            merged.append(replace(word, text=texts[0], unknown="", candidates=()))
        else:
            merged.append(uncertain(word, word.unknown or why, texts if whole else ()))
    return merged


def _equal(word: ShellWord, other: ShellWord) -> bool:
    return (word.text, word.unknown, word.candidates) == (other.text, other.unknown, other.candidates)


def _key(word: ShellWord) -> str:
    """What makes two words speak of the same thing: the name before the `=`, or the whole text."""
    return word.text.partition("=")[0].lstrip("+") if "=" in word.text else word.text
