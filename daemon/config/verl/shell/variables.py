"""`ShellVariables` are the variables of a script at one point of it; branches write to a copy, which may be merged."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rftd.daemon.config.source import SourcePlace
from rftd.daemon.config.verl.shell.word import ShellWord, merged_words, uncertain


@dataclass(frozen=True, slots=True)
class ShellValue:
    """The words of a variable: one, or those of an array."""

    words: tuple[ShellWord, ...]
    is_array: bool = False
    elements: tuple[ShellWord, ...] | None = None
    """The words where a list is asked for, if they are others."""

    @property
    def listed(self) -> tuple[ShellWord, ...]:
        """The words where a list is asked for."""
        return self.words if self.elements is None else self.elements


@dataclass(slots=True)
class ShellVariables:
    """The variables by name; what is assumed of one is not changed by the script."""

    assumed: Mapping[str, ShellValue]
    above: ShellVariables | None = None
    written: dict[str, ShellValue | None] = field(default_factory=dict)

    def get(self, name: str) -> ShellValue | None:
        """The value, or None for a variable that the script does not assign."""
        if name in self.assumed:
            return self.assumed[name]
        scope: ShellVariables | None = self
        while scope is not None:
            if name in scope.written:
                return scope.written[name]
            scope = scope.above
        return None

    def set(self, name: str, value: ShellValue) -> None:
        """Assigns a variable."""
        self.written[name] = value

    def unset(self, name: str) -> None:
        """Makes it a variable that the script does not assign."""
        self.written[name] = None

    def default(self, name: str, branch: ShellVariables) -> None:
        """Takes what a branch gives a variable that the script assigns nowhere else, as `${NAME:-...}` does."""
        if self.get(name) is None and (value := branch.written.get(name)) is not None:
            self.set(name, value)

    def branch(self) -> ShellVariables:
        """Variables that begin as these do and change alone."""
        return ShellVariables(self.assumed, self)

    def flat(self) -> ShellVariables:
        """A copy as they are now, which no later assignment changes."""
        written = {} if self.above is None else self.above.flat().written
        return ShellVariables(self.assumed, None, {**written, **self.written})

    def take(self, branch: ShellVariables) -> None:
        """Goes on with what a branch has assigned."""
        self.written.update(branch.written)

    def merge(self, branches: Sequence[ShellVariables], line: int, place: SourcePlace) -> None:
        """Goes on with what one of these branches has assigned, and nobody knows which."""
        for name in dict.fromkeys(name for branch in branches for name in branch.written):
            values = [branch.get(name) for branch in branches]
            words = [word for branch in branches if (value := branch.written.get(name)) for word in value.words[-1:]]
            where = words[0].place.line if words and words[0].place.line else line
            self.written[name] = _one_of(values, f"{name} is set on line {where} under a condition", name, place)


def _one_of(values: Sequence[ShellValue | None], why: str, name: str, place: SourcePlace) -> ShellValue | None:
    if all(value == values[0] for value in values):
        return values[0]
    if any(value is not None and value.is_array for value in values):
        lists = [value.listed if value is not None else () for value in values]
        return ShellValue(tuple(merged_words(lists, why)), is_array=True)
    texts: list[str] = []
    certain = True
    for value in values:
        # What the script does not assign comes from the environment.
        found = ("${oc.env:" + name + "}",) if value is None else value.words[0].texts if value.words else ("",)
        certain = certain and bool(found)
        texts += found
    if certain and len(set(texts)) == 1:
        return ShellValue((ShellWord(texts[0], place),))
    return ShellValue((uncertain(ShellWord("", place), why, texts if certain else ()),))


def assumed_value(text: str) -> ShellValue:
    """The value that somebody gives a variable: a text, and the words in it where the script asks for a list."""
    place = SourcePlace("--assume")
    try:
        words = shlex.split(text)
    except ValueError:
        words = [text]
    return ShellValue((ShellWord(text, place),), elements=tuple(ShellWord(word, place) for word in words))


def appended(before: ShellWord, word: ShellWord) -> ShellWord:
    """One text behind another."""
    if not before.unknown and not word.unknown:
        return replace(word, text=before.text + word.text)
    texts = [left + right for left in before.texts for right in word.texts]
    why = before.unknown or word.unknown
    return uncertain(replace(word, text=before.text + word.text), why, texts)
