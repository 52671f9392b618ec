"""`parse_script` parses a script into commands, blocks with branches, and functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from rftd.daemon.config.verl.shell.skipping import BLANKS, ENDS, ScriptError, skip_array, skip_brackets, skip_piece

_FUNCTION: Final = re.compile(
    r"(?:function[ \t]+([\w:.-]+)[ \t]*(?:\([ \t]*\))?|([A-Za-z_][\w:.-]*)[ \t]*\([ \t]*\))\s*(?=[{(])"
)
"""Beginning of a function's definition."""
_DOCUMENT: Final = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([^\s;&|<>()'\"]+))")
"""Beginning of a here-document, with its end word."""
_ARRAY: Final = re.compile(r"[A-Za-z_]\w*(?:\[[^]\n]*\])?\+?=\(")
"""Beginning of an assignment of an array."""
_WORD: Final = re.compile(r"[A-Za-z{}!\[]+(?=[\s;&|()<>]|\Z)")
"""A word that may be a keyword."""
_LOOPS: Final = frozenset({"for", "select", "while", "until"})
"""Keywords that begin a loop."""
_CLOSERS: Final = frozenset({"fi", "done", "esac", "}", "then", "do", "else", "elif"})
"""Keywords that end a block or begin its next part."""
_MAX_NESTING: Final = 40
"""Maximum depth of nested blocks."""


@dataclass(frozen=True, slots=True)
class HereDocument:
    """Text read by a command, from the first line to the last."""

    start: int
    """Index of the first character."""
    end: int
    """Index after the last character."""
    literal: bool
    """True if variables in the text are not expanded."""
    unindented: bool
    """True if leading tabs are removed."""


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """The range of characters of one command."""

    start: int
    """Index of the first character."""
    end: int
    """Index after the last character."""
    documents: list[HereDocument] = field(default_factory=list)
    """Here-documents of the command."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a block, run if the condition holds."""

    start: int
    """Index of the first character."""
    end: int
    """Index after the last character."""
    condition: tuple[Statement, ...]
    """Commands of the condition, the last one deciding; empty for `else`."""
    patterns: tuple[tuple[int, int], ...]
    """Ranges of the patterns of a branch of a `case`; empty in other blocks."""
    body: tuple[Statement, ...]
    """Statements run if the branch is taken."""


@dataclass(frozen=True, slots=True)
class ShellBlock:
    """An `if`, `case`, loop, group or subshell."""

    kind: str
    """Word that begins the block: `if`, `case`, `for`, `{`, `(`, `((` and so on."""
    start: int
    """Index of the first character."""
    head: tuple[int, int]
    """Range of the subject of a `case`, or of the items of a `for`; of the brackets, for `((`; empty in other
    blocks.
    """
    name: str
    """Variable of a `for` or `select`; empty in other blocks."""
    branches: tuple[Branch, ...]
    """Branches in the order of the script; a loop has one."""


@dataclass(frozen=True, slots=True)
class ShellFunction:
    """A function definition: the name, and the statements of the body."""

    name: str
    """Name of the function."""
    start: int
    """Index of the first character."""
    body: tuple[Statement, ...]
    """Statements of the body."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A command or a block, with the preceding operator: `&&`, `||`, `|`, or nothing."""

    joined: str
    """Operator before the statement: `&&`, `||`, `|`, or empty."""
    node: SimpleCommand | ShellBlock | ShellFunction
    """The command, block or function."""
    negated: bool = False
    """True after `!`: the outcome is reversed."""


Statements: TypeAlias = tuple[Statement, ...]
"""Statements in the order of the script."""


def parse_script(text: str) -> Statements:
    """Parses the script into statements without evaluating anything. Raises ScriptError for unclosed quotes and
    brackets.
    """
    parser = _ScriptParser(text)
    statements: list[Statement] = []
    while parser.at < len(text):
        statements += parser.statements(frozenset())
        parser.at += 1  # a bracket or a word without an opening counterpart
    return tuple(statements)


class _ScriptParser:
    """Parser of a script by recursive descent; `at` is the index of the next character."""

    def __init__(self, text: str) -> None:
        """Begins at the start of `text`."""
        self.text = text
        """Text of the script."""
        self.at = 0
        """Index of the next character."""
        self._depth = 0
        """Present depth of nested blocks."""
        self._pending: list[tuple[str, bool, bool, list[HereDocument]]] = []
        """Here-documents that begin after the present line: end word, whether literal, whether unindented, and the list
        of their command.
        """
        self._documents: list[HereDocument] = []
        """Here-documents of the command being parsed."""

    def statements(self, stops: frozenset[str]) -> Statements:
        """Parses statements up to a word of `stops`, a closing bracket, or the end."""
        parsed: list[Statement] = []
        joined = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith(("&&", "||"), self.at):
                joined = self.text[self.at : self.at + 2]
                self.at += 2
            elif char == ")" or (self.text.startswith(";;", self.at) and stops):
                break
            elif char in "|&;\n":
                joined = "|" if char == "|" else joined if char == "\n" and joined else ""
                self._line_end() if char == "\n" else self._next()
            elif char in BLANKS or self.text.startswith("\\\n", self.at):
                self.at += 1 if char in BLANKS else 2
            elif char == "#":
                self._comment()
            elif self._word() in stops:
                break
            else:
                statement = self._statement(joined)
                joined = ""
                if statement is not None:
                    parsed.append(statement)
        return tuple(parsed)

    def _next(self) -> None:
        """Moves past one character."""
        self.at += 1

    def _word(self) -> str:
        """Returns the word at the position if it may be a keyword, otherwise an empty text; does not move."""
        match = _WORD.match(self.text, self.at)
        return match[0] if match else ""

    def _statement(self, joined: str) -> Statement | None:
        """Parses one statement, preceded by the operator `joined`; None for a stray closing word, `time`, or `!` at the
        end. Raises ScriptError.
        """
        start = self.at
        word = self._word()
        if self._depth >= _MAX_NESTING:
            raise ScriptError(start, f"blocks are nested deeper than {_MAX_NESTING} levels", "make it flatter")
        function = _FUNCTION.match(self.text, start)
        self._depth += 1
        try:
            if function and word not in _LOOPS:
                self.at = function.end()
                body = self._statement("")
                return Statement(joined, ShellFunction(function[1] or function[2], start, (body,) if body else ()))
            if word == "if":
                return Statement(joined, self._if())
            if word == "case":
                return Statement(joined, self._case())
            if word in _LOOPS:
                return Statement(joined, self._loop(word))
            if word == "{" or self.text[start] == "(":
                return Statement(joined, self._group())
        finally:
            self._depth -= 1
        if word == "!":
            self.at += 1
            self._blank_lines()
            inner = self._statement(joined) if self.at < len(self.text) else None
            return None if inner is None else replace(inner, negated=not inner.negated)
        if word in _CLOSERS or word == "time":
            self.at += len(word)
            return None
        return Statement(joined, self._simple())

    def _if(self) -> ShellBlock:
        """Parses an `if` with its branches."""
        start = self.at
        branches: list[Branch] = []
        word = "if"
        while word in ("if", "elif"):
            begun = self.at
            self.at += len(word)
            condition = self.statements(frozenset({"then", "fi"}))
            self._skip("then")
            body = self.statements(frozenset({"elif", "else", "fi"}))
            branches.append(Branch(begun, self.at, condition, (), body))
            word = self._word()
        if word == "else":
            begun = self.at
            self._skip("else")
            body = self.statements(frozenset({"fi"}))
            branches.append(Branch(begun, self.at, (), (), body))
        self._skip("fi")
        return ShellBlock("if", start, (start, start), "", tuple(branches))

    def _case(self) -> ShellBlock:
        """Parses a `case` with its branches."""
        start = self.at
        self._skip("case")
        subject = self._span()
        self._blank_lines()
        self._skip("in")
        branches: list[Branch] = []
        while self.at < len(self.text):
            self._blank_lines()
            if self._word() == "esac" or self.at >= len(self.text):
                break
            begun = self.at
            patterns = self._patterns()
            body = self.statements(frozenset({"esac"}))
            branches.append(Branch(begun, self.at, (), patterns, body))
            while self.text.startswith((";", "&"), self.at):
                self.at += 1
        self._skip("esac")
        return ShellBlock("case", start, subject, "", tuple(branches))

    def _patterns(self) -> tuple[tuple[int, int], ...]:
        """Parses the patterns of a branch of a `case`; returns their ranges."""
        spans: list[tuple[int, int]] = []
        if self.text.startswith("(", self.at):
            self.at += 1
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] in BLANKS or self.text[self.at] in "|\n;&":
                self.at += 1
            else:
                spans.append(self._span())
        self.at += 1
        return tuple(spans)

    def _loop(self, word: str) -> ShellBlock:
        """Parses a loop beginning with the keyword `word`."""
        start = self.at
        self.at += len(word)
        name = ""
        item_span = (start, start)
        condition: Statements = ()
        if word in ("for", "select"):
            self._blank_lines()
            if self.text.startswith("((", self.at):
                self._brackets("((", "))")
            else:
                begun, ended = self._span()
                name = self.text[begun:ended]
                self._blank_lines()
                begun = self.at
                if self._word() == "in":
                    self._skip("in")
                    begun = self.at
                    self._simple()
                    item_span = (begun, self.at)
            self.statements(frozenset({"do", "done"}))
        else:
            condition = self.statements(frozenset({"do", "done"}))
        self._skip("do")
        body = self.statements(frozenset({"done"}))
        end = self.at
        self._skip("done")
        return ShellBlock(word, start, item_span, name, (Branch(start, end, condition, (), body),))

    def _group(self) -> ShellBlock:
        """Parses `{...}`, `(...)` or `((...))`."""
        start = self.at
        if self.text.startswith("((", start):
            self._brackets("((", "))")
            return ShellBlock("((", start, (start, self.at), "", ())
        kind = self.text[start]
        self.at += 1
        body = self.statements(frozenset({"}"}) if kind == "{" else frozenset({")"}))
        end = self.at
        self.at += 1
        return ShellBlock(kind, start, (start, start), "", (Branch(start, end, (), (), body),))

    def _brackets(self, opening: str, closing: str) -> None:
        """Moves past the next `closing`. Raises ScriptError at the `opening` if there is none."""
        end = self.text.find(closing, self.at)
        if end < 0:
            raise ScriptError(self.at, f"the `{opening}` that opens here is never closed", f"close it with {closing}")
        self.at = end + len(closing)

    def _simple(self) -> SimpleCommand:
        """Parses one command up to its end, with its here-documents."""
        start = self.at
        documents: list[HereDocument] = []
        self._documents = documents
        test = self.text.startswith("[[", start)
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char in BLANKS:
                self.at += 1
            elif char == "#" and self.text[self.at - 1 : self.at] in ("", " ", "\t", "\n"):
                self._comment()
            elif test and self.text.startswith("]]", self.at):
                test = False
                self.at += 2
            elif char == "&" and (self.text.startswith("&>", self.at) or self.text[self.at - 1] in "<>"):
                self.at += 1
            elif char in ENDS and not (test and char not in "\n;"):
                break
            elif char in "<>":
                self._redirection()
            elif char in ENDS:
                self.at += 1
            else:
                self._span()
        return SimpleCommand(start, self.at, documents)

    def _redirection(self) -> None:
        """Moves past a redirection; a here-document is added to `_pending`, to be read after the line."""
        match = _DOCUMENT.match(self.text, self.at)
        if match and not self.text.startswith("<<<", self.at):
            literal = match[4] is None or "\\" in match[0]
            self._pending.append((match[2] or match[3] or match[4], literal, match[1] == "-", self._documents))
            self.at = match.end()
            return
        if self.text.startswith(("<(", ">("), self.at):
            self.at = skip_brackets(self.text, self.at + 1)
            return
        self.at += 1

    def _line_end(self) -> None:
        """Moves to the next line, past the here-documents requested on the current line."""
        self.at += 1
        for word, literal, unindented, documents in self._pending:
            start = self.at
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                begun = self.at
                self.at = end + 1
                if (line.lstrip("\t") if unindented else line) == word:
                    documents.append(HereDocument(start, begun, literal, unindented))
                    break
            else:
                documents.append(HereDocument(start, len(self.text), literal, unindented))
        self._pending = []

    def _span(self) -> tuple[int, int]:
        """Returns the range of the next word, after blanks, and moves past it."""
        while self.at < len(self.text) and self.text[self.at] in BLANKS:
            self.at += 1
        start = self.at
        array = _ARRAY.match(self.text, start)
        if array:
            self.at = skip_array(self.text, array.end() - 1)
            return start, self.at
        while self.at < len(self.text) and self.text[self.at] not in f"{BLANKS}{ENDS}<>":
            if self.text.startswith("\\\n", self.at):
                break
            self.at = skip_piece(self.text, self.at)
        if self.at == start:
            self.at += 1
        return start, self.at

    def _skip(self, word: str) -> None:
        """Moves past a keyword, if it is at the position."""
        if self.text.startswith(word, self.at):
            self.at += len(word)

    def _blank_lines(self) -> None:
        """Moves past blanks, line ends and comments."""
        while self.at < len(self.text):
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                self._comment()
            elif self.text[self.at] in f"{BLANKS}\n;":
                self.at += 1
            else:
                return

    def _comment(self) -> None:
        """Moves to the end of the line."""
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end
