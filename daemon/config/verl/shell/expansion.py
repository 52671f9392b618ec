"""`WordReader` reads the words of a command: quotes are removed, variables are expanded, nothing is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from rftd.daemon.config.gaps import GAP
from rftd.daemon.config.issue import Issue, SyntaxIssue
from rftd.daemon.config.source import SourcePlace
from rftd.daemon.config.verl.shell.arithmetic import whole_number
from rftd.daemon.config.verl.shell.piece import MOST_CHARS, ExpandedChars, Piece, WordUnderWay, as_text_piece
from rftd.daemon.config.verl.shell.skipping import BLANKS, ENDS, ScriptError, skip_array, skip_piece
from rftd.daemon.config.verl.shell.variables import ShellValue, ShellVariables
from rftd.daemon.config.verl.shell.word import ShellProblem, ShellWord, merged_words

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
"""Name of a variable."""
_BRACED: Final = re.compile(r"([A-Za-z_]\w*|\d+)(\[[@*]\])?(?:(:?[-=+?])(.*))?\Z", re.DOTALL)
"""Inside of `${...}`: name, array, and default or alternative."""
_CUT: Final = re.compile(r"([A-Za-z_]\w*)(##|#|%%|%)([^*?\[\]$`]*\*?[^*?\[\]$`]*)\Z")
"""Inside of `${...}` removing a prefix or suffix."""
_WORKING_FOLDER_COMMANDS: Final = frozenset({"pwd", "pwd -P", "realpath .", "readlink -f ."})
"""Commands printing the folder in which the script runs."""
_MOST_NESTED: Final = 16
"""Maximum depth of defaults within defaults: each level uses the interpreter's stack."""


@dataclass(slots=True)
class WordReader:
    """Reads the words of a text from `at` up to `end`."""

    text: str
    """Text of the script, or of a default inside it."""
    at: int
    """Index of the next character to read."""
    end: int
    """Index after the last character to read."""
    variables: ShellVariables
    """Variables at this point of the script."""
    place_of: Callable[[int, int], SourcePlace]
    """Function from a range of the text to its position in the script."""
    spent: ExpandedChars
    """Counter limiting the characters of all expansions."""
    nested: int = 0
    """Depth of defaults within defaults."""

    def words(self, *, split: bool = True) -> list[ShellWord]:
        """Returns the words at the reading position; several for an expanded list or, if `split`, for a value with
        blanks.
        """
        start = self.at
        word = WordUnderWay()
        listed: list[ShellWord] = []
        while self.at < self.end:
            char = self.text[self.at]
            if char in BLANKS or char in ENDS or char in "<>" or self.text.startswith("\\\n", self.at):
                break
            piece = self._piece()
            if piece.words is not None and word.is_empty and split:
                listed += piece.words
            elif split and char == "$" and not piece.unknown:
                word.add_parts(piece.text.split())
            else:
                word.add(piece)
        if word.is_empty and not word.unknown:
            return listed
        position = self.place_of(start, self.at)
        finished = word.finished(position)
        if split and len(finished) == 1 and finished[0].unknown and self.text[start] == "$":
            # Each possible text would be split at its blanks.
            texts = [text.split() for text in finished[0].candidates]
            if any(len(parts) > 1 or "=" in "".join(parts) for parts in texts):
                lists = [[ShellWord(fragment, position) for fragment in parts] for parts in texts]
                return [*listed, *merged_words(lists, finished[0].unknown)]
        return [*listed, *finished]

    def skip_blanks(self) -> None:
        """Skips blanks and line continuations."""
        while self.at < self.end:
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] in BLANKS:
                self.at += 1
            else:
                return

    def fail(self, at: int, problem: str, fix: str) -> ShellProblem:
        """Builds the exception for a problem at index `at` of the text, with advice for the user."""
        return ShellProblem(Issue((), problem, fix, SyntaxIssue, place=self.place_of(at, at + 1)))

    def document(self, *, literal: bool, unindented: bool) -> str:
        """Returns the reader's text as a here-document: without leading tabs if `unindented`, with variables expanded
        unless `literal`.

        An unknown value becomes a gap, `???`.
        """
        parts: list[str] = []
        while self.at < self.end:
            char = self.text[self.at]
            if literal or char not in "\\$`":
                parts.append(char)
                self.at += 1
            elif char == "\\":
                escaped = self.text[self.at + 1 : self.at + 2]
                parts.append("" if escaped == "\n" else escaped if escaped in ("\\", "$", "`") else f"\\{escaped}")
                self.at += 2
            else:
                piece = as_text_piece(self._expansion() if char == "$" else self._substitution())
                parts.append(GAP if piece.unknown else piece.text)
        text = "".join(parts)
        return re.sub(r"(?m)^\t+", "", text) if unindented else text

    def _piece(self) -> Piece:
        """Reads the next piece of a word."""
        char = self.text[self.at]
        if char == "'":
            end = self._skip_piece()
            return self._spend(self.text[end[0] + 1 : end[1] - 1])
        if char == '"':
            return self._double_quoted()
        if char == "\\":
            self.at += 2
            return Piece(self.text[self.at - 1 : self.at])
        if char == "`":
            return self._substitution()
        if char == "$":
            return self._expansion()
        self.at += 1
        return self._spend(char)

    def _skip_piece(self) -> tuple[int, int]:
        """Skips the quote or expansion beginning here; returns the range of its characters."""
        start = self.at
        try:
            self.at = skip_piece(self.text, start)
        except ScriptError as error:
            raise self.fail(error.at, error.what, error.fix) from None
        return start, self.at

    def _double_quoted(self) -> Piece:
        """Reads a text in double quotes, with expansions."""
        opened = self.at
        _, closed = self._skip_piece()
        self.at = opened + 1
        word = WordUnderWay()
        while self.at < closed - 1:
            char = self.text[self.at]
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ("\\", '"', "$", "`", "\n"):
                word.add(Piece("" if self.text[self.at + 1] == "\n" else self.text[self.at + 1]))
                self.at += 2
            elif char in "$`":
                piece = self._expansion() if char == "$" else self._substitution()
                if piece.words is not None and word.is_empty and self.at == closed - 1:
                    self.at = closed
                    return piece
                word.add(as_text_piece(piece))
            else:
                word.add(self._spend(char))
                self.at += 1
        self.at = closed
        return word.piece()

    def _expansion(self) -> Piece:
        """Reads an expansion beginning with `$`."""
        start = self.at
        if self.text.startswith("$((", start):
            _, end = self._skip_piece()
            return self._arithmetic(self.text[start + 3 : end - 2])
        if self.text.startswith("$(", start):
            return self._substitution()
        if self.text.startswith("${", start):
            _, end = self._skip_piece()
            return self._braced(self.text[start + 2 : end - 1])
        match = _NAME.match(self.text, start + 1)
        if match:
            self.at = match.end()
            return self._variable(match[0], whole=False)
        self.at = start + 2
        return self._argument(start)

    def _argument(self, start: int) -> Piece:
        """Reads a special variable, such as `$1`, `$@` or `$#`."""
        char = self.text[start + 1 : start + 2]
        if char in ("@", "*"):
            # The arguments of the script: none, because the script is not called.
            arguments = self.variables.get("@")
            return Piece("", words=arguments.listed if arguments is not None else ())
        if char == "#":
            arguments = self.variables.get("@")
            return Piece(str(len(arguments.listed)) if arguments is not None else "0")
        if char in ("?", "!", "$", "-"):
            return Piece("")
        if char.isdigit():
            return self._variable(char, whole=False)
        self.at = start + 1
        return Piece("$")

    def _braced(self, inside: str) -> Piece:
        """Evaluates the inside of `${...}`."""
        match = _BRACED.match(inside)
        if match is None:
            if cased := re.fullmatch(r"([A-Za-z_]\w*)(,,|\^\^)", inside):
                return _with_changed_case(self._variable(cased[1], whole=False), cased[2])
            if sliced := re.fullmatch(r"[@*]:(\d{1,3})", inside):
                variable = self.variables.get("@")
                return Piece("", words=variable.listed[max(0, int(sliced[1]) - 1) :] if variable is not None else ())
            if cut := _CUT.match(inside):
                return self._cut(*cut.groups())
            # `${a.b}` in double quotes cannot be a variable: it belongs to Hydra, and the shell would refuse it.
            if re.fullmatch(r"[\w.]*\.[\w.]+|[\w.]+:[^}]*", inside) and ":-" not in inside:
                return Piece("${" + inside + "}")
            return Piece("", f"`${{{inside[:40]}}}` is not worked out")
        name, listed, operator, default = match.groups()
        variable = self.variables.get(name)
        if operator and variable is None and operator[-1] in "-=":
            return self._default(default)
        piece = self._variable(name, whole=bool(listed))
        if not operator or operator[-1] == "?":
            return piece
        empty = piece.text == "" and not piece.words
        if operator[-1] == "+":
            if variable is None or (operator == ":+" and empty and not piece.unknown):
                return Piece("")
            return self._default(default) if not piece.unknown else Piece("", piece.unknown)
        if piece.unknown and operator.startswith(":") and "" in piece.candidates:
            alternative = self._default(default)
            texts = alternative.candidates if alternative.unknown else (alternative.text,)
            return Piece("", piece.unknown, tuple(dict.fromkeys([*filter(None, piece.candidates), *texts])))
        return self._default(default) if operator.startswith(":") and empty and not piece.unknown else piece

    def _cut(self, name: str, operator: str, pattern: str) -> Piece:
        """Removes a prefix or suffix from the text, for patterns with at most one `*`."""
        piece = self._variable(name, whole=False)
        if piece.unknown or piece.text.startswith("${oc.env:"):
            return Piece("", f"`${{{name}{operator}{pattern}}}` is not worked out")
        middle = re.escape(pattern).replace(r"\*", ".*?" if len(operator) == 1 else ".*")
        if operator.startswith("#"):
            cut = re.match(middle, piece.text, re.DOTALL)
            return Piece(piece.text[cut.end() :] if cut else piece.text)
        starts = range(len(piece.text), -1, -1) if len(operator) == 1 else range(len(piece.text) + 1)
        whole = re.compile(re.escape(pattern).replace(r"\*", ".*"), re.DOTALL)
        at = next((at for at in starts if whole.fullmatch(piece.text, at)), len(piece.text))
        return Piece(piece.text[:at])

    def _default(self, text: str) -> Piece:
        """Evaluates the text of a default, itself with expansions."""
        # A default in shell may contain variables.
        if not set("$`'\"\\") & set(text):
            return self._spend(text)
        if self.nested >= _MOST_NESTED:
            raise self.fail(self.at - 1, f"defaults are nested deeper than {_MOST_NESTED} levels", "assign a variable")
        position = self.place_of(self.at - 1, self.at)
        inner = WordReader(text, 0, len(text), self.variables, lambda start, end: position, self.spent, self.nested + 1)
        word = WordUnderWay()
        while inner.at < len(text):
            word.add(as_text_piece(inner._piece()))
        return word.piece()

    def _variable(self, name: str, *, whole: bool) -> Piece:
        """Returns the value of a variable; with `whole`, all elements of an array."""
        variable = self.variables.get(name)
        if variable is None:
            return self._unassigned(name, whole=whole)
        self._spend("".join(word.text for word in variable.words))
        if whole:
            return Piece("", words=variable.listed)
        word = variable.words[0] if variable.words else None
        return Piece(word.text, word.unknown, word.candidates) if word else Piece("")

    def _unassigned(self, name: str, *, whole: bool) -> Piece:
        """Returns the value of a variable that the script does not assign: the reference `${oc.env:NAME}`, because the
        environment is not read; `.` for the working folder; an unknown value for an argument of the script.
        """
        if whole:
            return Piece("", words=())
        if name.isdigit():
            return Piece("", f"${name} is an argument of the script")
        if name in ("PWD", "OLDPWD"):
            return Piece(".")
        return Piece("${oc.env:" + name + "}")

    def _arithmetic(self, expression: str) -> Piece:
        """Evaluates the expression of `$((...))`."""

        def known(name: str) -> str:
            variable = self.variables.get(name)
            word = variable.words[0] if variable is not None and variable.words else None
            return word.text if word is not None and not word.unknown else ""

        number = whole_number(expression, known)
        if number is not None:
            return Piece(str(number))
        return self._one_of_sums(expression) or Piece("", f"`$(({expression.strip()[:40]}))` is not worked out")

    def _one_of_sums(self, expression: str) -> Piece | None:
        """Returns the sums for each text of the expression's single uncertain variable; None for no or several
        variables.
        """
        names = dict.fromkeys(_NAME.findall(expression))
        variables = {
            name: variable for name in names if (variable := self.variables.get(name)) is not None and variable.words
        }
        several = [name for name, variable in variables.items() if variable.words[0].unknown]
        if len(several) != 1:
            return None
        word = variables[several[0]].words[0]
        sums = []
        for text in word.candidates:
            texts = {name: _text_of(variable) for name, variable in variables.items()} | {several[0]: text}
            number = whole_number(expression, partial(_text_in, texts))
            if number is None:
                return None
            sums.append(str(number))
        return Piece("", word.unknown, tuple(dict.fromkeys(sums))) if sums else None

    def _substitution(self) -> Piece:
        """Reads a command substitution; known only for harmless commands, because nothing is run."""
        start, end = self._skip_piece()
        shown = " ".join(self.text[start:end].split())
        command = self.text[start + (1 if shown.startswith("`") else 2) : end - 1].strip()
        if command in _WORKING_FOLDER_COMMANDS:
            return Piece(".")
        if re.match(r"(TZ=\S+\s+)?date\b", command):
            # A time stamp makes a name unique and has no further meaning.
            return Piece("now")
        return self._path_of(command) or Piece("", f"{shown[:60]} is a command, and nothing is run")

    def _path_of(self, command: str) -> Piece | None:
        """Evaluates `basename` and `dirname`; None for another command, or for an unknown path."""
        if not command.startswith(("basename ", "dirname ")) or self.nested >= _MOST_NESTED:
            return None
        position = self.place_of(self.at - 1, self.at)
        inner = WordReader(command, 0, len(command), self.variables, lambda a, b: position, self.spent, self.nested + 1)
        name, *words = command_words(inner)
        if not 1 <= len(words) <= 2 or any(word.unknown for word in words):
            return None
        path = PurePosixPath(words[0].text)
        text = (
            str(path.parent) if name.text == "dirname" else path.name.removesuffix(words[-1].text if words[1:] else "")
        )
        return None if name.text == "basename" and "$" in path.name else Piece(text)

    def _spend(self, text: str) -> Piece:
        """Counts the characters of an expansion, and returns them as a piece. Raises ShellProblem beyond the limit."""
        if not self.spent.add(len(text)):
            problem = f"variables expand to more than {MOST_CHARS:,} characters"
            raise self.fail(self.at, problem, "shorten the script")
        return Piece(text)


def _with_changed_case(piece: Piece, operator: str) -> Piece:
    """Returns a piece in lower or upper case; unknown for a variable from the environment."""
    if "${" in piece.text:
        return Piece("", "the script changes the case of a variable that it does not assign")
    change = str.lower if operator == ",," else str.upper
    return Piece(change(piece.text), piece.unknown, tuple(change(text) for text in piece.candidates))


def _text_in(texts: Mapping[str, str], name: str) -> str:
    """Returns the text assumed for a variable; empty without one."""
    return texts.get(name, "")


def _text_of(variable: ShellValue | None) -> str:
    """Returns the first word of a variable as text; empty for none."""
    return variable.words[0].text if variable is not None and variable.words else ""


def command_words(reader: WordReader) -> list[ShellWord]:
    """Returns all words of a command up to the reader's end, without comments and redirections."""
    words: list[ShellWord] = []
    while True:
        reader.skip_blanks()
        if reader.at >= reader.end:
            return words
        char = reader.text[reader.at]
        if char == "#":
            end = reader.text.find("\n", reader.at)
            reader.at = reader.end if end < 0 else end
        elif char in "<>" or (char == "&" and reader.text.startswith("&>", reader.at)):
            skip_redirection(reader, words)
        elif char in ENDS:
            reader.at += 1
        else:
            words += reader.words()


def skip_redirection(reader: WordReader, words: list[ShellWord]) -> None:
    """Skips a redirection, including the number of the stream already read as a word."""
    if words and words[-1].text.isdigit() and reader.text[reader.at - 1] not in BLANKS:
        words.pop()
    while reader.at < reader.end and reader.text[reader.at] in f"<>&-{BLANKS}":
        reader.at += 1
    if reader.at < reader.end and reader.text[reader.at] not in ENDS:
        reader.words()


def array_words(reader: WordReader) -> list[ShellWord]:
    """Returns the words of the array `(...)` beginning at the reader's position."""
    end = skip_array(reader.text, reader.at)
    inner = replace(reader, at=reader.at + 1, end=end - 1)
    reader.at = end
    words: list[ShellWord] = []
    while True:
        inner.skip_blanks()
        if inner.at >= inner.end:
            return words
        char = inner.text[inner.at]
        if char == "\n":
            inner.at += 1
        elif char == "#":
            stop = inner.text.find("\n", inner.at)
            inner.at = inner.end if stop < 0 else stop
        elif char in ENDS or char in "<>":
            raise inner.fail(inner.at, f"{char!r} within an array is not read", "write only words")
        else:
            words += inner.words()
