"""Writes docs/configuration.md from the schema of the experiment file.

`.venv/bin/python -P tests/golden/make_configuration_page.py`, after adding or changing a field; a test says when the
page is out of date.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

_TESTS: Final = Path(__file__).parents[1]
if str(_TESTS) not in sys.path:
    sys.path.append(str(_TESTS))

from synthetic.daemon.config_fields import SchemaField, schema_fields  # noqa: E402

from rftd.daemon.config.field_path import show  # noqa: E402
from rftd.daemon.config.json_schema import documented, unit_of, upstream_of  # noqa: E402
from rftd.daemon.config.normalise import RENAMES  # noqa: E402
from rftd.daemon.config.schema.section import NumberOrText, Section, Source, Url  # noqa: E402

PAGE: Final = _TESTS.parent / "docs" / "configuration.md"

HEAD: Final = """\
# Every field

Written by `tests/golden/make_configuration_page.py` from the schema; do not edit. [The experiment
file](experiment_file.md) explains how fields work together.

A field **acts**; or it is **refused** if it is set, because it would change what is trained or sampled and is not yet
supported; or it is **harmless**: it changes nothing that is trained or sampled, and a warning says so; or it is
**checked**: it changes nothing either, but if its value does not match what rftd does, that is an error or a warning.
If you set a field that acts where it has no effect, a warning names it with the reason. The last column says where the
guide or Trinity-RFT 0.6 has another default, meaning or place. `[]` stands for an item of a list, `NAME` for a name of
your choice. A stage has its own sections with the same fields: `stages[].algorithm` and so on. Arguments of functions
(`*_args`) are in [algorithms](algorithms.md), those of engines in [engines](engines.md).
"""
_TYPES: Final = {bool: "true or false", int: "int", float: "number", str: "text", Any: "any"}
_READ: Final = (
    (get_args(Url)[1], "text or `{env: NAME}`"),
    (get_args(Source)[1], "text, list of text or `{env: NAME}`"),
    (get_args(NumberOrText)[1], "number or text"),
)
"""Types that are told by what reads them."""
_AS_WRITTEN: Final = ("rftd", "verl", "vLLM", "w ")
"""Words that a sentence begins with as they are."""
_NO_BOUND: Final = 10**9
"""A number so large says no more than that there is a bound."""


def text() -> str:
    """The page as it should be."""
    places: dict[tuple[type[Section], str], list[str]] = {}
    rows: dict[tuple[type[Section], str], dict[str, SchemaField]] = {}
    for field in schema_fields():
        key = (field.section, field.kind)
        place = _shown(field.path[:-1])
        if place not in places.setdefault(key, []):
            places[key].append(place)
        rows.setdefault(key, {}).setdefault(field.name, field)
    parts = [HEAD]
    for (section, kind), fields in rows.items():
        titles = ", ".join(f"`{place}`" for place in places[section, kind] if place) or "Top level"
        said = " ".join((inspect.getdoc(section) or "").split("\n\n")[0].split())
        parts.append(f"\n## {titles}{f', kind `{kind}`' if kind else ''}\n\n{said}\n\n")
        parts.append("| field | type | default | unit | effect | meaning | upstream |\n|---|---|---|---|---|---|---|\n")
        parts += [_row(field) for field in fields.values()]
    return "".join(parts)


def _shown(path: tuple[str | int, ...]) -> str:
    return ".".join("[]" if part == 0 else str(part) for part in path).replace(".[]", "[]")


def _row(field: SchemaField) -> str:
    differs = [upstream_of(field.info)]
    if older := _older(field):
        differs.append(f"the guide's place is {', '.join(f'`{name}`' for name in older)}.")
    effect = field.mark.effect if field.mark.effect == "acts" else f"**{field.mark.effect}**"
    cells = (
        f"`{field.name}`",
        _type(field.info.annotation, field.info.metadata),
        _default(field.info),
        unit_of(field.info),
        effect,
        meaning(field),
        _sentences(differs),
    )
    return f"| {' | '.join(cells)} |\n"


def meaning(field: SchemaField) -> str:
    """The words of the page on what a field does, or on why it does nothing."""
    notes = [documented(field.section).get(field.name) or field.info.description or ""]
    if field.mark.why:
        notes.append(field.mark.why)
    if field.mark.effect == "refused" and field.mark.fix != "leave it out":
        notes.append(field.mark.fix)
    return _sentences(notes)


def _sentences(notes: Iterable[str]) -> str:
    return " ".join(" ".join(_sentence(note) for note in notes if note).split()).replace("|", "\\|")


def _sentence(note: str) -> str:
    begun = note if note.startswith(_AS_WRITTEN) else note[:1].upper() + note[1:]
    return begun if begun.endswith(".") else f"{begun}."


def _older(field: SchemaField) -> list[str]:
    """The field's older places."""
    here = tuple("*" if part in (0, "NAME") else part for part in field.path)
    return [show(old) for old, new in RENAMES if new == here]


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    return "none" if value in (None, "") or value in ({}, []) else f"`{json.dumps(value)}`"


def _type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """The type in words, with its bounds."""
    origin = get_origin(annotation)
    if origin is Annotated:
        kind, *marks = get_args(annotation)
        return _type(kind, marks)
    if origin in (Union, UnionType):
        parts = [_type(part, metadata) for part in get_args(annotation) if part is not type(None)]
        return " or ".join(dict.fromkeys(parts))
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in get_args(annotation))
    if origin is list:
        return f"list of {_type(get_args(annotation)[0])}"
    if origin is dict:
        return "mapping"
    said = [words for each in metadata for mark, words in _READ if each == mark]
    if said:
        return said[0]
    return " ".join([_TYPES.get(annotation, "section"), *_bounds(metadata)])


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    flat = (part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else (each,)))
    for mark in flat:
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            value = getattr(mark, name, None)
            if value is not None and abs(value) < _NO_BOUND:
                yield f"{sign} {value}"


if __name__ == "__main__":
    PAGE.write_text(text())
