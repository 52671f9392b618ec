"""`read_script` follows a script like a shell without running any of it, for its commands and the files it writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from rftd.daemon.config.issue import Issue, LimitIssue, SyntaxIssue
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.daemon.config.verl.shell.conditions import holds, matches, tested_empty
from rftd.daemon.config.verl.shell.expansion import WordReader, array_words, command_words, skip_redirection
from rftd.daemon.config.verl.shell.piece import ExpandedChars
from rftd.daemon.config.verl.shell.script import ScriptPlaces, ShellChoices, ShellScript
from rftd.daemon.config.verl.shell.skipping import BLANKS, ENDS, ScriptError
from rftd.daemon.config.verl.shell.tree import (
    Branch,
    ShellBlock,
    ShellFunction,
    SimpleCommand,
    Statement,
    Statements,
    parse_script,
)
from rftd.daemon.config.verl.shell.variables import ShellValue, ShellVariables, append_word, assumed_value
from rftd.daemon.config.verl.shell.word import ShellProblem, ShellWord, uncertain

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=")
"""Beginning of an assignment: the name, and `+` if the value is appended."""
_ENDS_HERE: Final = re.compile(r"[ \t\r]*(?:\Z|[\n;&|()#]|[A-Za-z_]\w*\+?=)")
"""Matches where an assignment is not followed by a command: the end of the command, or another assignment."""
_OUTPUT_REDIRECTION: Final = re.compile(r"(?<![<>&\d])>>?[ \t]*(\"[^\"\n]+\"|'[^'\n]+'|[^\s;&|<>]+)")
"""Redirection of output to a file; group 1 is the file's name."""
_DECLARATIONS: Final = frozenset({"export", "local", "readonly", "declare", "typeset"})
"""Commands whose arguments are assignments."""
_ASSUMED_SUCCESSFUL: Final = frozenset(
    {"cd", "mkdir", "set", "shopt", "echo", "printf", "source", ".", "true", ":", "ulimit", "sleep"}
)
"""Commands assumed to succeed."""
_MAX_FOLLOWED_ITEMS: Final = 64
"""Maximum number of items of a loop followed one by one; a longer loop is followed once, with uncertain effects."""
_MAX_STATEMENTS: Final = 20_000
"""Maximum number of statements followed in one script."""
_MAX_CALL_DEPTH: Final = 8
"""Maximum depth of nested calls of functions, because each call uses the interpreter's stack."""


def read_script(text: str, source: SourceMap, choices: ShellChoices | None = None) -> ShellScript:
    """Returns the commands of the script in running order, and the files written. Raises ShellProblem."""
    return _ShellRun(text, source, choices or ShellChoices()).script()


class _ShellRun:
    """One reading of a script: follows statements with the variables at each point, and collects commands."""

    def __init__(self, text: str, source: SourceMap, choices: ShellChoices) -> None:
        """`text` is the script, `source` its origin, and `choices` are the user's decisions and assumed values."""
        self.text = text
        """Text of the script."""
        self.origin = source.origin
        """Origin of the script, for places in issues."""
        self.places = ScriptPlaces(text, source.origin)
        """Lines and places of indices in the script."""
        self.choices = choices
        """The user's decisions and assumed values."""
        self.result = ShellScript()
        """Commands and files found so far."""
        self._spent = ExpandedChars()
        """Number of characters expanded so far, which is limited."""
        self._functions: dict[str, ShellFunction] = {}
        """Functions defined so far, by name."""
        self._called: set[str] = set()
        """Names of the functions called so far."""
        self._statements = 0
        """Number of statements followed so far."""
        self._calls = 0
        """Present depth of nested calls of functions."""
        self._end = ""
        """Word that ended the statements being followed: `exit`, `return`, `break` or `continue`; empty while they
        continue.
        """
        self._leaving_branches: dict[str, list[ShellVariables]] = {"return": [], "break": [], "continue": []}
        """Variables of uncertain branches ended by `return`, `break` or `continue`, by this word."""
        self._loops = 0
        """Number of loops around the present statement, within the present function."""
        self._levels = 0
        """Number of loops that the last `break` or `continue` still has to leave."""
        self._in_doubt = 0
        """Number of uncertain branches around the present statement."""
        self.variables = ShellVariables(
            {name: assumed_value(text_assumed) for name, text_assumed in choices.assumed.items()}
        )
        """Variables at the present statement."""

    def script(self) -> ShellScript:
        """Follows all statements of the script, and functions never called; returns commands and written files."""
        try:
            statements = parse_script(self.text)
        except ScriptError as error:
            position = self.places.place(error.at, error.at + 1)
            raise ShellProblem(Issue((), error.what, error.fix, SyntaxIssue, place=position)) from None
        self._run(statements)
        for name, function in list(self._functions.items()):
            # A function may be called in ways that cannot be followed, such as by a trap.
            if name not in self._called:
                self._follow_separately(self.variables.branch(), function.body)
        return self.result

    def _reader(self, start: int, end: int) -> WordReader:
        """Returns a reader of the words in a range of the script."""
        return WordReader(self.text, start, end, self.variables, self.places.place, self._spent)

    def _run(self, statements: Sequence[Statement]) -> bool | None:
        """Follows statements; returns the outcome of the last one, None if undecidable."""
        outcome: bool | None = True
        for statement in statements:
            if self._end:
                break
            needed = {"&&": True, "||": False}.get(statement.joined)
            if needed is None or outcome is needed:
                outcome = self._statement(statement)
            elif outcome is None:
                outcome = self._follow_if_chosen(replace(statement, joined=""), needed)
        return outcome

    def _follow_if_chosen(self, statement: Statement, needed: bool) -> bool | None:
        """Follows a statement after `&&` or `||` if the outcome before is undecidable; the statement runs after the
        outcome `needed`.
        """
        start = statement.node.start
        decided = self._choice(start, start)
        if decided is False:
            return not needed
        if decided:
            return self._statement(statement)
        branch = self.variables.branch()
        if not self._follow_separately(branch, (statement,)):
            self._merge([branch, self.variables.branch()], start)
        return None

    def _follow_separately(self, branch: ShellVariables, statements: Sequence[Statement]) -> bool:
        """Follows statements with a separate set of variables; returns whether `exit`, `return`, `break` or `continue`
        ends them.
        """
        before = (self.variables, self._end)
        self.variables = branch
        self._end = ""
        self._in_doubt += 1
        try:
            self._run(statements)
            if self._end in self._leaving_branches:
                self._leaving_branches[self._end].append(branch.flat())
            return bool(self._end)
        finally:
            self.variables, self._end = before
            self._in_doubt -= 1

    def _merge_left(self, end: str, at: int) -> None:
        """Merges into the variables those of branches ended by the word `end`."""
        if self._leaving_branches[end]:
            self._merge([self.variables.flat(), *self._leaving_branches[end]], at)
            self._leaving_branches[end] = []

    def _merge(self, branches: Sequence[ShellVariables], at: int) -> None:
        """Merges the variables of alternative branches that end at index `at`."""
        self.variables.merge(branches, self.places.line(at), self.places.place(at, at + 1))

    def _statement(self, statement: Statement) -> bool | None:
        """Follows one statement; returns its outcome, None if undecidable. Raises ShellProblem beyond the limit of
        statements.
        """
        self._statements += 1
        if self._statements > _MAX_STATEMENTS:
            problem = f"more than {_MAX_STATEMENTS:,} commands would be run"
            position = self.places.place(statement.node.start, statement.node.start + 1)
            raise ShellProblem(Issue((), problem, "pass only the command line, after `--`", LimitIssue, place=position))
        node = statement.node
        if isinstance(node, ShellFunction):
            self._functions[node.name] = node
            return True
        outcome = self._simple(node) if isinstance(node, SimpleCommand) else self._block(node)
        return outcome if outcome is None or not statement.negated else not outcome

    def _block(self, block: ShellBlock) -> bool | None:
        """Follows a block; returns its outcome, None if undecidable."""
        if block.kind == "{":
            return self._run(block.branches[0].body)
        if block.kind == "(":
            self._follow_separately(self.variables.branch(), block.branches[0].body)
            return None
        if block.kind in ("for", "select", "while", "until"):
            self._loop(block)
            return None
        if block.kind == "((":
            return None
        self._branches(block)
        return None

    def _choice(self, start: int, end: int) -> bool | None:
        """True for a branch taken by the user's choice, false for a skipped branch, None without a choice."""
        first = self.places.line(start)
        last = self.places.line(max(start, end - 1))
        if any(first <= line <= last for line in self.choices.taken):
            return True
        return False if any(first <= line <= last for line in self.choices.skipped) else None

    def _branches(self, block: ShellBlock) -> None:
        """Follows the branch taken, or all possible branches, and merges their effects."""
        chosen = [self._choice(branch.start, branch.end) for branch in block.branches]
        subject = self._subject(block)
        outcomes: list[ShellVariables] = []
        complete = False
        for branch, choice in zip(block.branches, chosen, strict=True):
            decided = choice
            if True in chosen:
                decided = choice is True
            elif choice is None:
                decided = self._condition(branch, subject)
            if decided is False:
                self._pass_over(branch)
                continue
            if decided and not outcomes:
                self._run(branch.body)
                for later in block.branches[block.branches.index(branch) + 1 :]:
                    self._pass_over(later)
                return
            followed = self.variables.branch()
            if not self._follow_separately(followed, branch.body):
                outcomes.append(followed)
            if decided:
                complete = True
                break
        if not complete:
            untaken = self.variables.branch()
            if len(outcomes) == len(block.branches) == 1:
                untaken.default(tested_empty(self.text[branch.start : branch.end]), outcomes[0])
            outcomes.append(untaken)
        if outcomes:
            self._merge(outcomes, block.start)

    def _pass_over(self, branch: Branch) -> None:
        """Records the overrides written in a branch not taken."""
        self.result.passed_over.update(
            (word, position) for position, word in self.places.keys(branch.start, branch.end)
        )

    def _subject(self, block: ShellBlock) -> ShellWord:
        """Returns the word compared by a `case`; an empty word for other blocks."""
        words = self._reader(*block.head).words(split=False) if block.kind == "case" else []
        return words[0] if words else ShellWord("", self.places.place(block.start, block.start + 1))

    def _condition(self, branch: Branch, subject: ShellWord) -> bool | None:
        """Returns whether a branch is taken; None if undecidable."""
        if branch.patterns:
            patterns = [word for span in branch.patterns for word in self._reader(*span).words(split=False)]
            return matches(subject, patterns)
        if not branch.condition:
            return True
        return self._run(branch.condition)

    def _loop(self, block: ShellBlock) -> None:
        """Follows a loop, unless the user chose to skip it."""
        branch = block.branches[0]
        if self._choice(branch.start, branch.end) is False:
            return
        outer = (self._leaving_branches["break"], self._leaving_branches["continue"])
        self._leaving_branches |= {"break": [], "continue": []}
        self._loops += 1
        try:
            self._loop_body(block, branch)
        finally:
            self._loops -= 1
            self._leaving_branches["break"], self._leaving_branches["continue"] = outer

    def _loop_body(self, block: ShellBlock, branch: Branch) -> None:
        """Follows the iterations of a loop; once, with uncertain effects, if their number is unknown."""
        if block.kind in ("while", "until"):
            outcome = self._run(branch.condition)
            if outcome is (block.kind == "until"):
                return
        loop_words = command_words(self._reader(*block.head)) if block.kind == "for" else []
        certain = block.kind == "for" and bool(block.name) and not any(word.unknown for word in loop_words)
        if certain and len(loop_words) <= _MAX_FOLLOWED_ITEMS:
            for loop_word in loop_words:
                self.variables.set(block.name, ShellValue((loop_word,)))
                if self._iteration(branch.body, block.start):
                    break
            self._merge_left("break", block.start)
            return
        inner = self.variables.branch()
        if block.name:
            why = f"{block.name} is set by the loop on line {self.places.line(block.start)}"
            texts = [text for word in loop_words for text in word.texts]
            position = self.places.place(block.start, block.start + 1)
            inner.set(block.name, ShellValue((uncertain(ShellWord("", position), why, texts),)))
        self._follow_separately(inner, branch.body)
        for end in ("break", "continue"):
            self._merge_left(end, block.start)
        self._merge([inner, self.variables.branch()], block.start)

    def _iteration(self, body: Statements, at: int) -> bool:
        """Follows one iteration of a loop; True if no further iteration follows."""
        self._run(body)
        self._merge_left("continue", at)
        ended = self._end
        if ended == "break" and self._levels > 1:
            self._levels -= 1
        elif ended in ("break", "continue"):
            self._end = ""
        return bool(ended) and ended != "continue"

    def _simple(self, command: SimpleCommand) -> bool | None:
        """Follows one command: reads its words, assignments and redirections; returns its outcome, None if
        undecidable.
        """
        if self.text.startswith("[[", command.start):
            return self._double_test(command)
        reader = self._reader(command.start, command.end)
        words: list[ShellWord] = []
        while True:
            reader.skip_blanks()
            if reader.at >= reader.end:
                break
            char = self.text[reader.at]
            if char == "#":
                reader.at = reader.end
            elif char in "<>" or self.text.startswith("&>", reader.at):
                skip_redirection(reader, words)
            elif char in ENDS:
                reader.at += 1
            elif not words and (assigned := _ASSIGNMENT.match(self.text, reader.at)):
                self._assignment(assigned, reader)
            elif words and words[0].text in _DECLARATIONS and (assigned := _ASSIGNMENT.match(self.text, reader.at)):
                self._assignment(assigned, reader, declared=True)
            else:
                words += reader.words()
        for document in command.documents:
            target = _OUTPUT_REDIRECTION.search(self.text, command.start, command.end)
            name = self._reader(*target.span(1)).words(split=False) if target else []
            if name and not name[0].unknown:
                self.result.files[str(PurePosixPath(name[0].text))] = self._reader(
                    document.start, document.end
                ).document(literal=document.literal, unindented=document.unindented)
        return self._execute(words) if words else True

    def _double_test(self, command: SimpleCommand) -> bool | None:
        """Returns the outcome of `[[ ... ]]`; None if undecidable."""
        end = self.text.rfind("]]", command.start, command.end)
        reader = self._reader(command.start + 2, max(end, command.start + 2))
        words: list[ShellWord] = []
        while True:
            reader.skip_blanks()
            if reader.at >= reader.end:
                return holds(words)
            joint = self.text[reader.at : reader.at + 2]
            if joint in ("&&", "||"):
                words.append(ShellWord(joint, self.places.place(reader.at, reader.at + 2)))
                reader.at += 2
            elif self.text[reader.at] in "()<>&|;\n":
                return None
            else:
                words += reader.words(split=False)

    def _execute(self, words: list[ShellWord]) -> bool | None:
        """Applies the effect of one command on variables and control flow, or adds the command to the result; returns
        its outcome, None if undecidable.
        """
        first = words[0].text
        if first in _DECLARATIONS:
            return True
        if first in ("[", "test"):
            return holds(words[1:-1] if first == "[" else words[1:])
        if first in ("exit", "return"):
            if self._in_doubt:
                self._end = self._end or first
            return True
        if first in ("break", "continue"):
            if self._loops:
                self._end = first
                self._levels = int(words[1].text) if len(words) > 1 and words[1].text.isdigit() else 1
            return True
        if first in ("read", "mapfile", "readarray", "getopts"):
            for word in words[1:]:
                self._forget(word.text)
            return None
        if first == "unset":
            for word in words[1:]:
                self.variables.unset(word.text)
            return True
        if first == "shift":
            self._shift()
            return True
        if first in self._functions and not words[0].unknown:
            return self._call(self._functions[first], words[1:])
        self.result.commands.append(words)
        return {"true": True, "false": False}.get(first, True if first in _ASSUMED_SUCCESSFUL else None)

    def _call(self, function: ShellFunction, words: list[ShellWord]) -> bool | None:
        """Follows the body of a function with these arguments; returns its outcome, None if undecidable."""
        self._called.add(function.name)
        if self._calls >= _MAX_CALL_DEPTH:
            return None
        before = {name: self.variables.get(name) for name in ("@", *map(str, range(1, 10)))}
        self._arguments(words)
        outer = (self._leaving_branches, self._loops)
        self._leaving_branches = {end: [] for end in self._leaving_branches}
        self._loops = 0
        self._calls += 1
        try:
            outcome = self._run(function.body)
            self._end = "" if self._end == "return" else self._end
            self._merge_left("return", function.start)
            return outcome
        finally:
            self._calls -= 1
            self._leaving_branches, self._loops = outer
            self.variables.written.update(before)

    def _arguments(self, words: Sequence[ShellWord]) -> None:
        """Sets `$@` and `$1` to `$9`."""
        self.variables.set("@", ShellValue(tuple(words), is_array=True))
        for number in range(1, 10):
            word = words[number - 1] if number <= len(words) else ShellWord("", SourcePlace(self.origin))
            self.variables.set(str(number), ShellValue((word,)))

    def _shift(self) -> None:
        """Removes the first argument."""
        arguments = self.variables.get("@")
        if arguments is not None:
            self._arguments(arguments.words[1:])

    def _forget(self, name: str) -> None:
        """Marks a variable as unknown, because the script sets it while running."""
        why = f"the script sets {name} while it runs"
        self.variables.set(name, ShellValue((ShellWord("", SourcePlace(self.origin), why),)))

    def _assignment(self, match: re.Match[str], reader: WordReader, *, declared: bool = False) -> None:
        """Reads the value of an assignment and sets the variable, unless the assignment applies to one command only."""
        name = match[1]
        reader.at = match.end()
        before = self.variables.get(name) if match[2] else None
        if self.text.startswith("(", reader.at):
            words = array_words(reader)
            self.variables.set(name, ShellValue((*(before.listed if before else ()), *words), is_array=True))
            return
        position = self.places.place(match.start(), match.end())
        ends = reader.at >= reader.end or self.text[reader.at] in f"{BLANKS}{ENDS}"
        read = [] if ends else reader.words(split=False)
        word = read[0] if read else ShellWord("", position)
        if before and before.words:
            word = append_word(before.words[0], word)
        # Before a command, as in `A=1 python3 ...`, the assignment applies to the command only, whose words are
        # expanded first.
        if declared or _ENDS_HERE.match(self.text, reader.at) or reader.at >= reader.end:
            self.variables.set(name, ShellValue((word,)))
