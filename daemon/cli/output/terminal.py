"""`say`: text for people, fitted to the terminal's width; without a terminal, printed unchanged."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Final, TextIO

import click

_USUAL_COLUMNS: Final = 80
"""Assumed width of a terminal not reporting its own."""
_INDENT: Final = 2
"""Number of blanks added before the continuation of a broken line."""
_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, and characters beginning a line or changing the direction of the following text."""
_WORD: Final = re.compile(r"\s*\S+")
"""A word with the blanks before it."""
_PART: Final = re.compile(r" (?=--)|(?<=\S) (?=rftd )")
"""A blank before the next part of a command."""
_SEAM: Final = re.compile(r"[/,=](?![/,=])")
"""A character after which a long word may be broken."""


def say(text: object = "", *, err: bool = False, indent: int | None = None) -> None:
    """Prints text, fitted to a terminal. `indent` is the left edge for the continuation of a long line."""
    width = width_of(sys.stderr if err else sys.stdout)
    click.echo(str(text) if width is None else fitted(str(text), width, indent=indent), err=err)


def say_command(before: str, command: str) -> None:
    """Prints a command for pasting, fitted to a terminal."""
    width = width_of(sys.stdout)
    click.echo(before + plain(command) if width is None else pasteable(before, command, width))


def pasteable(before: str, command: str, width: int) -> str:
    """Returns the command after a label; a long command is broken into lines joined again by a shell."""
    command = plain(command)
    if cells(before + command) <= width:
        return before + command
    # Before each option, and after a variable: never within a word, which a shell would split.
    return f"{before.rstrip()}\n  " + _PART.sub(" \\\n    ", command)


def fitting_errors(text: str) -> str:
    """Returns the text fitted to standard error: broken for a terminal, else unchanged."""
    width = width_of(sys.stderr)
    return text if width is None else fitted(text, width)


def width_of(stream: TextIO) -> int | None:
    """Returns the columns of a stream's terminal; None without a terminal."""
    if not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS


def fitted(text: str, width: int, *, indent: int | None = None) -> str:
    """Returns the text in lines of at most `width` cells, broken between words, and within a word only if it is wider.

    Control characters are shown in Python's notation.
    """
    lines = plain(text).expandtabs().split("\n")
    return "\n".join(piece for line in lines for piece in _broken_lines(line, width, indent))


def plain(text: str) -> str:
    """Returns the text with terminal control characters except line feeds and tabs in Python's notation."""
    return _CONTROL_CHARACTERS.sub(lambda match: repr(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """Returns the text in one line: an error of a third party must not begin new lines or control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in text.strip().replace("\t", "  ")
    )


def cells(text: str) -> int:
    """Returns the number of terminal columns taken by a text, wide characters included."""
    if text.isascii():
        return len(text)
    # Imported for non-ASCII text only: the import takes as long as a whole short verb.
    from rich.cells import cell_len

    return cell_len(text)


def _broken_lines(line: str, width: int, indent: int | None) -> Iterator[str]:
    """Yields a line in pieces of at most `width` cells; `indent` is the left edge of further pieces."""
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
        *full, remainder = _pieces(shown + word, width, margin)
        yield from full
        shown = remainder
    yield shown


def _pieces(line: str, width: int, margin: str) -> Iterator[str]:
    """Yields a one-word line in pieces that fit: broken after a slash, a comma or an equals sign if possible."""
    while len(line) > width or cells(line) > width:
        # Measured only over a prefix that may fit, not the whole line: a long one would take quadratic time.
        most = next(
            count for count in range(min(len(line), width), 0, -1) if count == 1 or cells(line[:count]) <= width
        )
        cut = max((seam.end() for seam in _SEAM.finditer(line[:most])), default=0)
        if cut <= len(margin):
            cut = most
        yield line[:cut]
        line = margin + line[cut:]
    yield line
