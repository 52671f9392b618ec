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
    """True if a program reads standard output: then the value is there, and nothing is left to be shown."""
    if settings.machine_readable:
        emit(value, settings)
    return settings.machine_readable


def emit(value: Any, settings: Settings) -> None:
    """Prints one value; of a list in JSON lines each item on a line."""
    if settings.output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=not _ascii()), nl=False)
    elif settings.output == "jsonl":
        for item in _items(value):
            emit_line(item)
    else:
        click.echo(json.dumps(value, indent=2, ensure_ascii=_ascii()))


def emit_line(value: Any) -> None:
    """Prints one value as one line of JSON, at once."""
    click.echo(json.dumps(value, ensure_ascii=_ascii(), separators=(",", ":")))


def emit_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints a line of names and one line for each row (RFC 4180); what a row lacks, or has as None, is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    click.echo(text.getvalue(), nl=False)


def _ascii() -> bool:
    """True if standard output has no character for each text: then JSON's own escapes say what it lacks."""
    try:
        return codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"
    except (AttributeError, LookupError):  # closed, or of a caller's own kind
        return False


def _cell(value: Any) -> Any:
    # As JSON writes it: Python's True is no word of a spreadsheet or of another language.
    return json.dumps(value) if isinstance(value, bool) else value


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict) and isinstance(value.get("items"), list):
        return list(value["items"])
    return value if isinstance(value, list) else [value]
