"""Data for programs on standard output: JSON, JSON lines or YAML, or CSV."""

from __future__ import annotations

import codecs
import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from rftd.daemon.cli.settings import Settings


def emitted(value: Any, settings: Settings) -> bool:
    """Prints the answer for a program reading standard output; returns False, printing nothing, for a person."""
    if settings.machine_readable:
        emit(value, settings)
    return settings.machine_readable


def emit(value: Any, settings: Settings) -> None:
    """Prints an answer as JSON or YAML; in JSON lines, each element of a list on a separate line."""
    if settings.output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=not _ascii()), nl=False)
    elif settings.output == "jsonl":
        for element in _elements_of(value):
            emit_line(element)
    else:
        click.echo(json.dumps(value, indent=2, ensure_ascii=_ascii()))


def emit_line(value: Any) -> None:
    """Prints an object as a line of compact JSON, immediately, for programs reading line by line."""
    click.echo(json.dumps(value, ensure_ascii=_ascii(), separators=(",", ":")))


def emit_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints a line of names and one line for each row (RFC 4180); missing columns and None are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    click.echo(text.getvalue(), nl=False)


def _ascii() -> bool:
    """True if standard output cannot encode every text: then JSON's own escapes replace missing characters."""
    try:
        return codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"
    except (AttributeError, LookupError):  # closed, or of a caller's own class
        return False


def _cell(value: Any) -> Any:
    # As in JSON: Python's True means nothing to a spreadsheet or another language.
    """Returns a cell for CSV: booleans as in JSON."""
    return json.dumps(value) if isinstance(value, bool) else value


def _elements_of(value: Any) -> list[Any]:
    """Returns the elements of a list, or of an answer's `items`; any other answer is its only element."""
    if isinstance(value, dict) and isinstance(value.get("items"), list):
        return list(value["items"])
    return value if isinstance(value, list) else [value]
