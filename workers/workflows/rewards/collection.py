"""Answers of several members, compared member by member: lists, sets, pairs, intervals, unions, relations and choices.

The members of a set or a bare list may come in any order; members in round or square brackets may not.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Final

MEMBERS: Final = 16
"""Maximum members of a collection; longer lists are text."""
COLLECTION_CHARS: Final = 1000
"""Maximum characters of a collection; longer texts are not lists."""
_OPENING: Final = "([{"
_CLOSING: Final = ")]}"
_AND: Final = re.compile(r"\s*(?:\\text\{,? ?(?:and|or),? ?\}|(?:,\s*)?(?<![A-Za-z])(?:and|or)(?![A-Za-z])|;)\s*")
"""Separator of the members of a list: a comma, semicolon, `and` or `or`."""
_OR: Final = re.compile(r"\s*(?:\\text\{ ?or ?\}|(?<![A-Za-z\\])or(?![A-Za-z]))\s*")
"""The word `or` between alternatives."""
_UNION: Final = re.compile(r"\\cup(?![A-Za-z])|∪")
"""Sign of a union of intervals."""
_RELATIONS: Final = (
    ("\\leqslant", "≤"),
    ("\\geqslant", "≥"),
    ("\\leq", "≤"),
    ("\\geq", "≥"),
    ("\\neq", "≠"),
    ("\\le", "≤"),
    ("\\ge", "≥"),
    ("\\ne", "≠"),
    ("\\lt", "<"),
    ("\\gt", ">"),
    ("<=", "≤"),
    (">=", "≥"),
    ("!=", "≠"),
)
"""Sign of each LaTeX relation, longest names first."""
_RELATION: Final = re.compile(r"[=<>≤≥≠]")
"""Sign of an equation or inequality."""
_FLIPPED: Final = str.maketrans("<>≤≥", "><≥≤")
"""Sign of the reversed relation."""
_CHOICE: Final = re.compile(r"\(?([A-J])\)?[.:]?")
"""A letter of a multiple-choice answer."""
_NAMED_CHOICE: Final = re.compile(r"(?:[Oo]ption|[Cc]hoice) \(?([A-J])\)?[.:]?|(?:\(([A-J])\)|([A-J])[.):])(?: +\S.*)?")
"""A letter of a multiple-choice answer, with its label or text."""
_NAME: Final = re.compile(r"\\?[A-Za-z]+(?:_(?:\{[A-Za-z0-9]+\}|[A-Za-z0-9]))?(?:\([A-Za-z]\))?")
"""Name of a variable or function, possibly with an index."""
_NAMES: Final = re.compile(rf"\( ?{_NAME.pattern}(?: ?, ?{_NAME.pattern})+ ?\)")
"""Several names in parentheses."""
_MEMBER_OF: Final = re.compile(rf"{_NAME.pattern} ?(?:\\in(?![A-Za-z])|∈) ?")
"""A variable and the sign of membership before a set."""

Same = Callable[[str, str], bool]


def same_choice(answer: str, truth: str) -> bool:
    """True if the truth is the letter of a choice, and the answer names that letter: `(A)`, `A`, `A. Paris`."""
    letter = _CHOICE.fullmatch(truth)
    if letter is None:
        return False
    named = _CHOICE.fullmatch(answer) or _NAMED_CHOICE.fullmatch(answer)
    return named is not None and letter[1] in named.groups()


def value_side(text: str) -> str:
    """Returns the value in an equation of names: 5 in `x = 5`, the pair in `(x, y) = (1, 2)`; other texts unchanged."""
    sides = _RELATION.split(_relations(text))
    name = sides[0].strip()
    if len(sides) == 2 and "=" in text and (_NAME.fullmatch(name) or _NAMES.fullmatch(name)):
        return text.partition("=")[2].strip()
    return text


def same_collection(answer: str, truth: str, same: Same) -> bool:
    """True if two plain texts are collections of one kind with equal members, compared by `same`."""
    if len(answer) > COLLECTION_CHARS or len(truth) > COLLECTION_CHARS:
        return False
    answer = _merged(_MEMBER_OF.sub("", _braces(answer), count=1))
    truth = _merged(_MEMBER_OF.sub("", _braces(truth), count=1))
    answer, truth = _as_intervals(answer, truth)
    if truth[:1] != answer[:1] and "{" in (answer[:1], truth[:1]):
        # A set may be written without its braces.
        answer = _without_braces(answer)
        truth = _without_braces(truth)
    for split, alike in ((_union, _in_any_order), (_listed, _in_any_order), (_related, _in_order)):
        ours = split(answer)
        theirs = split(truth)
        if len(ours) > 1 or len(theirs) > 1:
            return max(len(ours), len(theirs)) <= MEMBERS and alike(ours, theirs, same)
    return _bracketed(answer, truth, same)


def _as_intervals(answer: str, truth: str) -> tuple[str, str]:
    """Returns both texts, a relation rewritten as intervals if the other text is an interval."""
    if bool(_RELATION.search(_relations(answer))) == bool(_RELATION.search(_relations(truth))):
        return answer, truth
    return _solutions(answer) or answer, _solutions(truth) or truth


def _solutions(text: str) -> str:
    """Returns the intervals of `x < 1 or x > 2`; empty for a text of another form."""
    intervals = [_interval(relation) for relation in _OR.split(text)]
    return " \\cup ".join(intervals) if all(intervals) else ""


def _interval(text: str) -> str:
    sides, signs = _ascending(text)
    if set(signs) <= {"<", "≤"} and len(signs) in (1, 2):
        if len(sides) == 3 and _NAME.fullmatch(sides[1]):
            return _ends(sides[0], signs[0], signs[1], sides[2])
        if len(sides) == 2 and _NAME.fullmatch(sides[0]):
            return _ends("-\\infty", "<", signs[0], sides[1])
        if len(sides) == 2 and _NAME.fullmatch(sides[1]):
            return _ends(sides[0], signs[0], "<", "\\infty")
    return ""


def _ends(low: str, first: str, second: str, high: str) -> str:
    return ("[" if first == "≤" else "(") + f"{low}, {high}" + ("]" if second == "≤" else ")")


def _bracketed(answer: str, truth: str, same: Same) -> bool:
    if answer[:1] not in _OPENING or (answer[:1], answer[-1:]) != (truth[:1], truth[-1:]):
        return False
    if not (_enclosed(answer) and _enclosed(truth)):
        return False
    ours = _parts(answer[1:-1])
    theirs = _parts(truth[1:-1])
    if answer[0] == "{":
        return max(len(ours), len(theirs)) <= MEMBERS and _as_sets(ours, theirs, same)
    return 1 < len(ours) <= MEMBERS and _in_order(ours, theirs, same)


def _in_order(ours: list[str], theirs: list[str], same: Same) -> bool:
    return len(ours) == len(theirs) and all(
        same(member, counterpart) for member, counterpart in zip(ours, theirs, strict=True)
    )


def _in_any_order(ours: list[str], theirs: list[str], same: Same) -> bool:
    if len(ours) != len(theirs):
        return False
    unmatched = list(theirs)
    for member in ours:
        match = next((index for index, candidate in enumerate(unmatched) if same(member, candidate)), None)
        if match is None:
            return False
        del unmatched[match]
    return True


def _as_sets(ours: list[str], theirs: list[str], same: Same) -> bool:
    return all(any(same(member, counterpart) for counterpart in theirs) for member in ours) and all(
        any(same(member, counterpart) for member in ours) for counterpart in theirs
    )


def _union(text: str) -> list[str]:
    return [subset.strip() for subset in _UNION.split(text)]


def _merged(text: str) -> str:
    """Returns a union of explicit sets as one set; other texts unchanged."""
    subsets = [(subset, _without_braces(subset)) for subset in _union(text)]
    if len(subsets) < 2 or any(subset == members for subset, members in subsets):
        return text
    return "{" + ", ".join(member for _, members in subsets for member in _parts(members)) + "}"


def _listed(text: str) -> list[str]:
    """Returns the members of a bare list, with both signs of a plus-minus written out."""
    if "\\pm" in text or "±" in text:
        text = text.replace("±", "\\pm ")
        if text.count("\\pm") > 1:
            return [text]
        return [text.replace("\\pm", "+"), text.replace("\\pm", "-")]
    return _parts(_AND.sub(", ", text))


def _related(text: str) -> list[str]:
    """Returns the sides and signs of a relation, equal for `x < 5` and `5 > x`."""
    sides, signs = _ascending(text)
    return [*sides, *signs]


def _ascending(text: str) -> tuple[list[str], list[str]]:
    """Returns the sides of a relation and the signs between them, from the least to the greatest."""
    text = _relations(text)
    signs = _RELATION.findall(text)
    if not signs:
        return [text], []
    sides = [side.strip() for side in _RELATION.split(text)]
    if any(sign in "<≤" for sign in signs) or not any(sign in ">≥" for sign in signs):
        return sides, signs
    return sides[::-1], [sign.translate(_FLIPPED) for sign in reversed(signs)]


def _relations(text: str) -> str:
    for spelling, sign in _RELATIONS:
        text = re.sub(re.escape(spelling) + ("(?![A-Za-z])" if spelling[0] == "\\" else ""), sign, text)
    return text


def _without_braces(text: str) -> str:
    return text[1:-1] if text[:1] == "{" and text[-1:] == "}" and _enclosed(text) else text


def _braces(text: str) -> str:
    return text.replace("\\{", "{").replace("\\}", "}").replace("\\lbrace", "{").replace("\\rbrace", "}").strip()


def _parts(text: str) -> list[str]:
    """Returns the parts between commas outside brackets."""
    depth = 0
    commas: list[int] = []
    for index, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            commas.append(index)
    # If a space follows only some commas, the others are inside numbers: 1,000, 2,000.
    spaced = [index for index in commas if text[index + 1 : index + 2] == " "]
    bounds = [-1, *(spaced or commas), len(text)]
    return [text[start + 1 : end].strip() for start, end in itertools.pairwise(bounds)]


def _enclosed(text: str) -> bool:
    """True if the last bracket closes the first: not so in `(1,2),(3,4)`."""
    depth = 0
    for index, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
            if depth == 0:
                return index == len(text) - 1
    return False
