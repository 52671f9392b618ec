"""`read_shell` reads a shell script without running anything: its commands, with variables assigned in it expanded."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from rftd.daemon.config.issue import Issue, SyntaxIssue
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.daemon.config.verl.arithmetic import whole_number

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_BRACED: Final = re.compile(r"([A-Za-z_]\w*)(\[[@*]\])?(?:(:?[-=])(.*))?\Z", re.DOTALL)
_ENDS_HERE: Final = re.compile(r"[ \t\r]*(?:\Z|[\n;&|()#]|[A-Za-z_]\w*\+?=)")
_HERE_DOCUMENT: Final = re.compile(r"<<(?!<)")
_ARGUMENT: Final = re.compile(r"\d+:?-(.*)\Z", re.DOTALL)
_BLANKS: Final = " \t\r"
_ENDS: Final = "\n;&|()"
_OPENERS: Final = frozenset({"if", "for", "while", "until", "case", "select", "{"})
_CLOSERS: Final = frozenset({"fi", "done", "esac", "}"})
_PARTS: Final = frozenset({"then", "do", "else", "elif", "!", "time", "function"})
_DECLARING: Final = frozenset({"export", "local", "readonly", "declare", "typeset"})
_Piece: TypeAlias = tuple[str, str, "list[ShellWord] | None"]
"""A text, the reason why it is not known, and the words in its place if it is a whole list, which may be empty."""
_MOST_NESTED: Final = 16
"""Defaults within defaults: each takes a part of the interpreter's stack."""
_MOST_CHARS: Final = 1 << 20
"""What all words together may expand to: variables may double one another."""


@dataclass(frozen=True, slots=True)
class ShellWord:
    """A word of a command; a variable that the script does not assign is `${oc.env:NAME}` in it."""

    text: str
    place: SourcePlace
    unknown: str = ""
    """The reason why its text is not known; empty if it is."""


class ShellProblem(Exception):
    """Signals that the script cannot be read on."""

    def __init__(self, issue: Issue) -> None:
        super().__init__(issue.what)
        self.issue = issue


def read_shell(text: str, source: SourceMap) -> list[list[ShellWord]]:
    """The commands of the script, each as its words, in order. Raises ShellProblem."""
    return _ShellReader(text, source).commands()


class _ShellReader:
    def __init__(self, text: str, source: SourceMap, nested: int = 0) -> None:
        self.text = text
        self.nested = nested
        self.origin = source.origin
        self.at = 0
        self.variables: dict[str, list[ShellWord]] = {}
        self._depth = 0
        self._spent = 0
        self._conditional = False
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def commands(self) -> list[list[ShellWord]]:
        found: list[list[ShellWord]] = []
        words: list[ShellWord] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in _BLANKS or self.text.startswith("\\\n", self.at):
                self.at += 1 if char in _BLANKS else 2
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in _ENDS:
                self._end(words, found)
                words = []
                self._conditional = self.text[self.at : self.at + 2] in ("&&", "||")
                self.at += 2 if self._conditional else 1
            elif char in "<>":
                self._redirection(words)
            elif not words and (assigned := _ASSIGNMENT.match(self.text, self.at)):
                self._assignment(assigned)
            else:
                words += self._word()
                if len(words) == 1 and words[0].text in _PARTS:
                    words = []
        self._end(words, found)
        return found

    def place(self, at: int, end: int | None = None) -> SourcePlace:
        """The place of the characters from `at` up to `end`."""
        line = _count_below(self._line_starts, at)
        column = at - self._line_starts[line - 1] + 1
        width = 1 if end is None else max(1, end - at)
        return SourcePlace(self.origin, line, column, line, column + width)

    def fail(self, at: int, what: str, fix: str) -> ShellProblem:
        """The problem at a place."""
        return ShellProblem(Issue((), what, fix, SyntaxIssue, place=self.place(at)))

    def _end(self, words: list[ShellWord], found: list[list[ShellWord]]) -> None:
        """Takes a whole command: a block's depth, variables that it sets, or one that is kept."""
        if not words:
            return
        first = words[0].text
        if first in _OPENERS:
            self._depth += 1
            if first in ("for", "select") and len(words) > 1:
                self._forget(words[1].text)
        elif first in _CLOSERS:
            self._depth = max(0, self._depth - 1)
        elif first in _DECLARING:
            for word in words[1:]:
                name = _ASSIGNMENT.match(word.text)
                if name:
                    self._set(name[1], [replace(word, text=word.text[name.end() :])])
            return
        elif first in ("read", "unset", "mapfile"):
            for word in words[1:]:
                self._forget(word.text)
            return
        found.append(words)

    def _forget(self, name: str) -> None:
        why = f"the script sets {name} while it runs"
        self.variables[name] = [ShellWord("", self.place(self.at), why)]

    def _set(self, name: str, words: list[ShellWord]) -> None:
        if self._depth or self._conditional:
            line = self.place(max(0, self.at - 1)).line
            words = [ShellWord("", self.place(self.at), f"{name} is set on line {line} under a condition")]
        self.variables[name] = words

    def _assignment(self, found: re.Match[str]) -> None:
        name = found[1]
        self.at = found.end()
        before = self.variables.get(name, []) if found[2] else []
        self._spend("".join(word.text or " " for word in before))
        if self.text.startswith("(", self.at):
            self._set(name, [*before, *self._array()])
            return
        here = self.place(found.start())
        ends = self.at >= len(self.text) or self.text[self.at] in f"{_BLANKS}{_ENDS}"
        words = [ShellWord("", here)] if ends else self._word(split=False)
        value = words[0] if words else ShellWord("", here)
        if before:
            value = replace(value, text=before[0].text + value.text, unknown=before[0].unknown or value.unknown)
        # Before a command, as in `A=1 python3 ...`, it is set for that command alone, whose words are expanded first.
        if _ENDS_HERE.match(self.text, self.at):
            self._set(name, [value])

    def _array(self) -> list[ShellWord]:
        opened = self.at
        self.at += 1
        words: list[ShellWord] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                return words
            if char in f"{_BLANKS}\n" or self.text.startswith("\\\n", self.at):
                self.at += 2 if char == "\\" else 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif char in _ENDS or char in "<>":
                raise self.fail(self.at, f"{char!r} within an array is not read", "write words alone")
            else:
                words += self._word()
        raise self.fail(opened, "the array that begins here is never closed", "close it with )")

    def _redirection(self, words: list[ShellWord]) -> None:
        if _HERE_DOCUMENT.match(self.text, self.at):
            fix = "give the command line alone, after `--`"
            raise self.fail(self.at, "a here-document begins here, which is not read", fix)
        # The number of a stream, as in `2>&1`, was taken for a word.
        if words and words[-1].text.isdigit() and self.text[self.at - 1] not in _BLANKS:
            words.pop()
        while self.at < len(self.text) and self.text[self.at] in f"<>&{_BLANKS}":
            self.at += 1
        if self.at < len(self.text) and self.text[self.at] not in _ENDS:
            self._word()

    def _word(self, *, split: bool = True) -> list[ShellWord]:
        """The words that stand here: of an expanded list, or of text with blanks, several or none."""
        start = self.at
        texts: list[str | None] = [None]
        unknown = ""
        listed: list[ShellWord] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in _BLANKS or char in _ENDS or char in "<>":
                break
            if self.text.startswith("\\\n", self.at):
                self.at += 2
                break
            text, why, elements = self._piece()
            unknown = unknown or why
            if elements is not None and texts == [None] and split:
                listed = elements
                continue
            # What an expansion without quotes holds is taken apart at its blanks.
            parts = text.split() if split and char == "$" else [text]
            for number, part in enumerate(parts):
                if number:
                    texts.append(None)
                texts[-1] = (texts[-1] or "") + part
        if texts == [None] and not unknown:
            return listed
        here = self.place(start, self.at)
        return [ShellWord(text or "", here, unknown) for text in texts]

    def _piece(self) -> _Piece:
        """The text of the next piece of a word, the reason why it is not known, and the words of a whole list."""
        char = self.text[self.at]
        if char == "'":
            end = self.text.find("'", self.at + 1)
            if end < 0:
                raise self.fail(self.at, "the quote that opens here is never closed", "close it with '")
            inside = self.text[self.at + 1 : end]
            self.at = end + 1
            return self._spend(inside), "", None
        if char == '"':
            return self._double_quoted()
        if char == "\\":
            self.at += 2
            return self.text[self.at - 1 : self.at], "", None
        if char == "`":
            return self._not_run("`")
        if char == "$":
            return self._expansion()
        self.at += 1
        return self._spend(char), "", None

    def _double_quoted(self) -> _Piece:
        opened = self.at
        self.at += 1
        parts: list[str] = []
        unknown = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return "".join(parts), unknown, None
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ("\\", '"', "$", "`", "\n"):
                parts.append("" if self.text[self.at + 1] == "\n" else self.text[self.at + 1])
                self.at += 2
            elif char in "$`":
                text, why, listed = self._expansion() if char == "$" else self._not_run("`")
                unknown = unknown or why
                if listed is not None and not parts and self.text.startswith('"', self.at):
                    self.at += 1
                    return "", "", listed
                parts.append(" ".join(word.text for word in listed) if listed else text)
            else:
                parts.append(self._spend(char))
                self.at += 1
        raise self.fail(opened, "the quote that opens here is never closed", 'close it with "')

    def _expansion(self) -> _Piece:
        start = self.at
        if self.text.startswith("$((", start):
            end = self.text.find("))", start)
            while end >= 0 and self.text[end : end + 3] == ")))":
                end += 1
            if end < 0:
                raise self.fail(start, "the `$((` that opens here is never closed", "close it with ))")
            self.at = end + 2
            return self._calculated(self.text[start + 3 : end])
        if self.text.startswith("$(", start):
            return self._not_run("$(")
        if self.text.startswith("${", start):
            end = _closing_brace(self.text, start + 2)
            if end < 0:
                raise self.fail(start, "the `${` that opens here is never closed", "close it with }")
            self.at = end + 1
            return self._braced(self.text[start + 2 : end])
        found = _NAME.match(self.text, start + 1)
        if found:
            self.at = found.end()
            return self._variable(found[0], whole=False)
        self.at = start + 2
        # `$@` and its like are what the script is called with: nothing, for it is not called.
        return ("", "", []) if self.text[start + 1 : start + 2] in ("@", "*", "#", "?") else self._argument(start)

    def _argument(self, start: int) -> _Piece:
        char = self.text[start + 1 : start + 2]
        if char.isdigit():
            return "", f"${char} is what the script is called with", None
        self.at = start + 1
        return "$", "", None

    def _braced(self, inside: str) -> _Piece:
        found = _BRACED.match(inside)
        argument = _ARGUMENT.match(inside)
        if argument:
            return self._default(argument[1])
        if found is None:
            # `${a.b}` in double quotes cannot be a variable: it is Hydra's, and the shell would refuse it.
            if re.fullmatch(r"[\w.]*\.[\w.]+|[\w.]+:[^}]*", inside) and ":-" not in inside:
                return "${" + inside + "}", "", None
            return "", f"`${{{inside[:40]}}}` is not worked out", None
        name, listed, operator, default = found.groups()
        if name not in self.variables and operator:
            return self._default(default)
        text, why, words = self._variable(name, whole=bool(listed))
        if operator and operator.startswith(":") and not text and not why and not words:
            return self._default(default)
        return text, why, words

    def _default(self, text: str) -> _Piece:
        # In shell a default may hold variables of its own.
        if "$" not in text and "`" not in text and "'" not in text and '"' not in text:
            return self._spend(text), "", None
        if self.nested >= _MOST_NESTED:
            raise self.fail(self.at - 1, f"defaults are nested deeper than {_MOST_NESTED} levels", "assign a variable")
        inner = _ShellReader(text, SourceMap(self.origin), self.nested + 1)
        inner.variables = self.variables
        inner._spent = self._spent + len(text)
        words = inner._word(split=False)
        return " ".join(word.text for word in words), next((word.unknown for word in words if word.unknown), ""), None

    def _variable(self, name: str, *, whole: bool) -> _Piece:
        words = self.variables.get(name)
        if words is None:
            return ("", "", []) if whole else ("${oc.env:" + name + "}", "", None)
        self._spend("".join(word.text for word in words))
        if whole:
            return "", "", words
        return (words[0].text, words[0].unknown, None) if words else ("", "", None)

    def _calculated(self, expression: str) -> _Piece:
        def known(name: str) -> str:
            words = self.variables.get(name)
            return words[0].text if words and not words[0].unknown else ""

        number = whole_number(expression, known)
        if number is None:
            return "", f"`$(({expression.strip()[:40]}))` is not worked out", None
        return str(number), "", None

    def _not_run(self, opening: str) -> _Piece:
        start = self.at
        depth = 0
        self.at += len(opening)
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if opening == "`" and char == "`":
                break
            if opening == "$(" and char == "(":
                depth += 1
            elif opening == "$(" and char == ")":
                if not depth:
                    break
                depth -= 1
        else:
            raise self.fail(start, f"the `{opening}` that opens here is never closed", "close it")
        shown = " ".join(self.text[start : self.at].split())
        return "", f"{shown[:60]} is a command, and nothing is run", None

    def _spend(self, text: str) -> str:
        self._spent += len(text)
        if self._spent > _MOST_CHARS:
            raise self.fail(self.at, f"variables expand to more than {_MOST_CHARS:,} characters", "shorten the script")
        return text


def _closing_brace(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        if text.startswith("${", at):
            depth += 1
        elif text[at] == "}":
            if not depth:
                return at
            depth -= 1
        elif text[at] == "\n":
            return -1
    return -1


def _count_below(starts: list[int], at: int) -> int:
    """The number of the line, from 1, that holds the character `at`."""
    return bisect.bisect_right(starts, at)
