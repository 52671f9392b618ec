"""`skip_piece` finds the end of a quote or an expansion in a script, and reports unclosed ones."""

from __future__ import annotations

from typing import Final

BLANKS: Final = " \t\r"
"""Characters that separate words."""
ENDS: Final = "\n;&|()"
"""Characters that end a command."""
_MOST_NESTED: Final = 40
"""Maximum depth of nested quotes and expansions."""


class ScriptError(Exception):
    """Raised for an unclosed quote or bracket, with the position and the opening text."""

    def __init__(self, at: int, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.at = at
        self.what = problem
        self.fix = fix


def skip_piece(text: str, at: int, depth: int = 0) -> int:
    """Returns the end of the quote, expansion or character beginning at `at`. Raises ScriptError."""
    if depth > _MOST_NESTED:
        raise ScriptError(at, f"quotes are nested deeper than {_MOST_NESTED} levels", "assign a variable")
    char = text[at]
    if char == "\\":
        return min(len(text), at + 2)
    if char == "'":
        end = text.find("'", at + 1)
        if end < 0:
            raise ScriptError(at, "the quote that opens here is never closed", "close it with '")
        return end + 1
    if char == '"':
        return _skip_quoted(text, at, depth + 1)
    if char == "`":
        end = text.find("`", at + 1)
        if end < 0:
            raise ScriptError(at, "the `` ` `` that opens here is never closed", "close it")
        return end + 1
    if text.startswith("$((", at):
        return _skip_sum(text, at)
    if text.startswith("$(", at):
        return skip_brackets(text, at + 1, depth + 1)
    if text.startswith("${", at):
        return _skip_braces(text, at, depth + 1)
    return at + 1


def _skip_quoted(text: str, start: int, depth: int) -> int:
    """Returns the end of a text in double quotes. Raises ScriptError."""
    at = start + 1
    while at < len(text):
        if text[at] == '"':
            return at + 1
        at = at + 2 if text[at] == "\\" else skip_piece(text, at, depth) if text[at] in "$`" else at + 1
    raise ScriptError(start, "the quote that opens here is never closed", 'close it with "')


def _skip_sum(text: str, start: int) -> int:
    """Returns the end of `$((...))`. Raises ScriptError."""
    end = text.find("))", start)
    while end >= 0 and text[end : end + 3] == ")))":
        end += 1
    if end < 0:
        raise ScriptError(start, "the `$((` that opens here is never closed", "close it with ))")
    return end + 2


def skip_brackets(text: str, start: int, depth: int = 0) -> int:
    """Returns the end of the `(...)` beginning at `start`, nested quotes and brackets included. Raises ScriptError."""
    at = start + 1
    opened = 0
    while at < len(text):
        if text[at] == ")":
            if not opened:
                return at + 1
            opened -= 1
            at += 1
        elif text[at] == "(":
            opened += 1
            at += 1
        else:
            at = skip_piece(text, at, depth)
    opening = start - 1 if start and text[start - 1] == "$" else start
    shown = text[opening : start + 1]
    raise ScriptError(opening, f"the `{shown}` that opens here is never closed", "close it")


def _skip_braces(text: str, start: int, depth: int) -> int:
    """Returns the end of `${...}`. Raises ScriptError."""
    at = start + 2
    while at < len(text) and text[at] != "\n":
        if text[at] == "}":
            return at + 1
        at = skip_piece(text, at, depth) if text[at] in '$\\`"' else at + 1
    raise ScriptError(start, "the `${` that opens here is never closed", "close it with }")


def skip_array(text: str, start: int) -> int:
    """Returns the end of the array `(...)` beginning at `start`. Raises ScriptError."""
    at = start + 1
    while at < len(text):
        if text[at] == ")":
            return at + 1
        if text[at] == "#" and text[at - 1] in f"{BLANKS}\n(":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            at = skip_piece(text, at)
    raise ScriptError(start, "the array that begins here is never closed", "close it with )")
