"""`say`: text for a person, of which no line is wider than the terminal; where there is none, it is as it was."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Final, TextIO

import click

_USUAL_COLUMNS: Final = 80
"""The width of a terminal that does not tell its own."""
_INDENT: Final = 2
"""The blanks by which the rest of a line that was broken stands further in than its beginning."""
_OBEYED: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Beside control characters those that begin a line or turn the direction of what follows."""
_WORD: Final = re.compile(r"\s*\S+")
_PART: Final = re.compile(r" (?=--)|(?<=\S) (?=rftd )")
"""A blank of a command at which its next part begins."""
_SEAM: Final = re.compile(r"[/,=](?![/,=])")


def say(text: object = "", *, err: bool = False, indent: int | None = None) -> None:
    """Prints text, on a terminal fitted to it. `indent` is where the rest of a line that is too wide begins."""
    width = width_of(sys.stderr if err else sys.stdout)
    click.echo(str(text) if width is None else fitted(str(text), width, indent=indent), err=err)


def say_command(before: str, command: str) -> None:
    """Prints a command that is to be pasted, on a terminal fitted to it."""
    width = width_of(sys.stdout)
    click.echo(before + plain(command) if width is None else pasteable(before, command, width))


def pasteable(before: str, command: str, width: int) -> str:
    """The command behind a label; where it is too wide, its parts are on lines that a shell joins again."""
    command = plain(command)
    if cells(before + command) <= width:
        return before + command
    # Before each option, and behind a variable: never within a word, for the shell would take it for two.
    return f"{before.rstrip()}\n  " + _PART.sub(" \\\n    ", command)


def fitting_errors(text: str) -> str:
    """The text as standard error has room for it: broken where that is a terminal, else as it is."""
    width = width_of(sys.stderr)
    return text if width is None else fitted(text, width)


def width_of(stream: TextIO) -> int | None:
    """The columns of the terminal that a stream writes to; None if it writes to none."""
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS


def fitted(text: str, width: int, *, indent: int | None = None) -> str:
    """The text in lines of at most `width` cells, broken between words, and within a word only if it is wider.

    Characters that a terminal obeys are shown as Python writes them.
    """
    lines = plain(text).expandtabs().split("\n")
    return "\n".join(part for line in lines for part in _broken(line, width, indent))


def plain(text: str) -> str:
    """The text without characters that a terminal obeys, but line feeds and tabs: each as Python writes it."""
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The text in one line: what a third party's error may hold begins no line of its own, and orders no terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text.strip().replace("\t", "  "))


def cells(text: str) -> int:
    """The columns that a text takes."""
    if text.isascii():
        return len(text)
    # Imported for other texts only: the import takes as long as a whole short verb.
    from rich.cells import cell_len

    return cell_len(text)


def _broken(line: str, width: int, indent: int | None) -> Iterator[str]:
    if cells(line) <= width:
        yield line
        return
    leading = len(line) - len(line.lstrip())
    margin = " " * min(leading + _INDENT if indent is None else indent, width // 2)
    shown = ""
    for word in _WORD.findall(line):
        if cells(shown) + cells(word) <= width:
            shown += word
            continue
        if shown.strip():
            yield shown
            shown = margin
            word = word.lstrip()
        *full, rest = _pieces(shown + word, width, margin)
        yield from full
        shown = rest
    yield shown


def _pieces(line: str, width: int, margin: str) -> Iterator[str]:
    """A line of one word in parts that fit: broken behind a slash, a comma or an equals sign if there is one."""
    while len(line) > width or cells(line) > width:
        # Of no more than fits, and not of the whole line: a long one would take the square of its length.
        most = next(
            count for count in range(min(len(line), width), 0, -1) if count == 1 or cells(line[:count]) <= width
        )
        cut = max((seam.end() for seam in _SEAM.finditer(line[:most])), default=0)
        if cut <= len(margin):
            cut = most
        yield line[:cut]
        line = margin + line[cut:]
    yield line
