"""`ShellVariables` are the variables at one point of a script; branches write to a copy, merged later."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rftd.daemon.config.source import SourcePlace
from rftd.daemon.config.verl.shell.word import ShellWord, merged_words, uncertain


@dataclass(frozen=True, slots=True)
class ShellValue:
    """The words of a variable: one, or the elements of an array."""

    words: tuple[ShellWord, ...]
    """The words outside list context."""
    is_array: bool = False
    """True for an array."""
    elements: tuple[ShellWord, ...] | None = None
    """The words in list context, if different."""

    @property
    def listed(self) -> tuple[ShellWord, ...]:
        """The words in list context."""
        return self.words if self.elements is None else self.elements


@dataclass(slots=True)
class ShellVariables:
    """The variables by name; assumed variables are not changed by the script."""

    assumed: Mapping[str, ShellValue]
    """Values chosen by the user, by name."""
    above: ShellVariables | None = None
    """Variables around this branch; None for the whole script."""
    written: dict[str, ShellValue | None] = field(default_factory=dict)
    """Values assigned in this branch; None for an unset variable."""

    def get(self, name: str) -> ShellValue | None:
        """Returns the value; None for a variable not assigned by the script."""
        if name in self.assumed:
            return self.assumed[name]
        scope: ShellVariables | None = self
        while scope is not None:
            if name in scope.written:
                return scope.written[name]
            scope = scope.above
        return None

    def set(self, name: str, content: ShellValue) -> None:
        """Assigns a value to a variable."""
        self.written[name] = content

    def unset(self, name: str) -> None:
        """Marks a variable as not assigned by the script."""
        self.written[name] = None

    def default(self, name: str, branch: ShellVariables) -> None:
        """Takes over a branch's value of a variable that the script assigns nowhere else, as with `${NAME:-...}`."""
        if self.get(name) is None and (content := branch.written.get(name)) is not None:
            self.set(name, content)

    def branch(self) -> ShellVariables:
        """Returns variables for a branch: reads see these values, assignments stay in the branch."""
        return ShellVariables(self.assumed, self)

    def flat(self) -> ShellVariables:
        """Returns a copy that later assignments do not change."""
        assignments = {} if self.above is None else self.above.flat().written
        return ShellVariables(self.assumed, None, {**assignments, **self.written})

    def take(self, branch: ShellVariables) -> None:
        """Applies the assignments of a branch that was certainly run."""
        self.written.update(branch.written)

    def merge(self, branches: Sequence[ShellVariables], line: int, position: SourcePlace) -> None:
        """Merges the assignments of alternative branches, one of which was run; differing values become uncertain."""
        for name in dict.fromkeys(name for branch in branches for name in branch.written):
            alternatives = [branch.get(name) for branch in branches]
            words = [
                word for branch in branches if (assigned := branch.written.get(name)) for word in assigned.words[-1:]
            ]
            where = words[0].place.line if words and words[0].place.line else line
            self.written[name] = _one_of(
                alternatives, f"{name} is set on line {where} under a condition", name, position
            )


def _one_of(alternatives: Sequence[ShellValue | None], why: str, name: str, position: SourcePlace) -> ShellValue | None:
    """Returns the value of a variable after alternative branches: the common one, or an uncertain one for the reason
    `why`.
    """
    if all(alternative == alternatives[0] for alternative in alternatives):
        return alternatives[0]
    if any(alternative is not None and alternative.is_array for alternative in alternatives):
        lists = [alternative.listed if alternative is not None else () for alternative in alternatives]
        return ShellValue(tuple(merged_words(lists, why)), is_array=True)
    texts: list[str] = []
    certain = True
    for alternative in alternatives:
        # A variable not assigned by the script comes from the environment.
        possible = (
            ("${oc.env:" + name + "}",)
            if alternative is None
            else alternative.words[0].texts
            if alternative.words
            else ("",)
        )
        certain = certain and bool(possible)
        texts += possible
    if certain and len(set(texts)) == 1:
        return ShellValue((ShellWord(texts[0], position),))
    return ShellValue((uncertain(ShellWord("", position), why, texts if certain else ()),))


def assumed_value(text: str) -> ShellValue:
    """Returns the value chosen by the user for a variable: a text, split into words in list context."""
    position = SourcePlace("--assume")
    try:
        words = shlex.split(text)
    except ValueError:
        words = [text]
    return ShellValue((ShellWord(text, position),), elements=tuple(ShellWord(word, position) for word in words))


def append_word(before: ShellWord, word: ShellWord) -> ShellWord:
    """Returns the word `before` continued by `word`, as after `NAME+=text`, with all combinations of possible texts."""
    if not before.unknown and not word.unknown:
        return replace(word, text=before.text + word.text)
    texts = [prefix + suffix for prefix in before.texts for suffix in word.texts]
    why = before.unknown or word.unknown
    return uncertain(replace(word, text=before.text + word.text), why, texts)
