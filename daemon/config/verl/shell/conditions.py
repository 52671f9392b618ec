"""`holds` decides the outcome of `[ ... ]`, `[[ ... ]]` and `test`, and `matches` the outcome of a `case` pattern."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rftd.daemon.config.verl.shell.word import ShellWord

_MOST_TRIED: Final = 64
"""Maximum number of combinations of possible texts."""
_OUTSIDE: Final = "${oc.env:"
"""Beginning of a variable that comes from the environment."""
_EMPTY: Final = re.compile(
    r"""\s*(?:if\s+)?(?:\[\[?|test)\s+-z\s+"?\$\{?([A-Za-z_]\w*)\}?"?(?:\s+\]\]?)?\s*(?:;|\n)\s*then\s"""
)
"""Beginning of a branch taken if a variable is empty."""
_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
"""The shell's comparisons of numbers."""


def holds(words: Sequence[ShellWord]) -> bool | None:
    """Returns the outcome of a test if it is the same for all possible texts of the words; None if it depends on one,
    or on the machine.
    """
    texts = [word.texts for word in words]
    if any(not word_texts for word_texts in texts):
        return _decided_by_known_part(words)
    tried = list(itertools.islice(itertools.product(*texts), _MOST_TRIED + 1))
    outcomes = {_outcome(list(combination)) for combination in tried}
    return outcomes.pop() if len(outcomes) == 1 and len(tried) <= _MOST_TRIED else None


def _decided_by_known_part(words: Sequence[ShellWord]) -> bool | None:
    """Returns the outcome of `-n` or `-z` for a text with a known part; None for another test."""
    # A known part of a text proves that the text is not empty.
    if len(words) == 2 and words[0].text in ("-n", "-z") and words[1].text:
        return words[0].text == "-n"
    return None


def _outcome(texts: list[str]) -> bool | None:
    """Returns the outcome of one test, `!`, `-a`, `-o`, `&&` and `||` included."""
    for joint, decided in (("||", True), ("-o", True), ("&&", False), ("-a", False)):
        if joint in texts[1:-1]:
            at = texts.index(joint, 1)
            before = _outcome(texts[:at])
            after = _outcome(texts[at + 1 :])
            if decided in (before, after):
                return decided
            return None if before is None or after is None else not decided
    if texts[:1] == ["!"]:
        inner = _outcome(texts[1:])
        return None if inner is None else not inner
    if any(_OUTSIDE in text for text in texts):
        return None
    if len(texts) == 1:
        return bool(texts[0])
    if len(texts) == 2:
        return {"-n": bool(texts[1]), "-z": not texts[1]}.get(texts[0])
    return _compare(*texts) if len(texts) == 3 else None


def _compare(subject: str, operator: str, operand: str) -> bool | None:
    """Returns the outcome of a comparison by one operator; None if not supported."""
    if operator in ("=", "==", "!="):
        return fnmatch.fnmatchcase(subject, operand) == (operator != "!=")
    if operator == "=~":
        # Regular expressions of the shell and of Python agree for patterns of only these characters.
        return re.search(operand, subject) is not None if re.fullmatch(r"\^?[\w./-]*\$?", operand) else None
    if operator in _NUMBERS and all(re.fullmatch(r"-?\d{1,18}", text) for text in (subject, operand)):
        return _NUMBERS[operator](int(subject), int(operand))
    return None


def tested_empty(branch: str) -> str:
    """Returns the variable of a branch taken if the variable is empty, `if [ -z "$NAME" ]; then`; "" for any other
    branch.
    """
    match = _EMPTY.match(branch)
    return match[1] if match else ""


def matches(subject: ShellWord, patterns: Sequence[ShellWord]) -> bool | None:
    """True if one of the patterns fits every possible text of the `case`'s `subject`; None if that depends
    on the text.
    """
    if [pattern.text for pattern in patterns if not pattern.unknown] == ["*"]:
        return True
    if any(pattern.unknown for pattern in patterns) or not subject.texts:
        return None
    if any(_OUTSIDE in text for text in subject.texts):
        return None
    outcomes = {any(fnmatch.fnmatchcase(text, pattern.text) for pattern in patterns) for text in subject.texts}
    return outcomes.pop() if len(outcomes) == 1 else None
