"""The fields of a resolved experiment file for the page: filtered, in sections, with contents as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

import msgspec

from rftd.daemon.http.views.configuration import ResolvedField

SetBy = Literal["all", "given", "default", "derived"]
"""Fields of every origin, of file and flags, of defaults, or those following from other fields."""
_ORIGINS: Final[dict[SetBy, tuple[str, ...]]] = {
    "all": ("file", "flag", "default", "derived"),
    "given": ("file", "flag"),
    "default": ("default",),
    "derived": ("derived",),
}
"""Origins of the fields shown for each choice of the page."""
_SECTION: Final = re.compile(r"((?:stages\[\d+\]\.|derived\.stages\.[^.\[]+\.)?[^.\[]+)[.\[]")
"""Pattern of a field's path, with the section as the first group."""
_HEAD: Final = "experiment"
"""Section of the fields at the top of the file."""


class FieldLine(NamedTuple):
    """A field of a section: the path below the section, and its content as text."""

    key: str
    """Path of the field below its section."""
    text: str
    """Content of the field as text."""
    field: ResolvedField
    """The field with full path, content and origin."""


class FileSection(NamedTuple):
    """Neighbouring fields with the same beginning of their paths."""

    title: str
    """Common beginning of the fields' paths."""
    lines: list[FieldLine]
    """Fields of the section, in order."""


def sections_of(fields: Sequence[ResolvedField], words: str, shown: SetBy) -> list[FileSection]:
    """Returns the fields with all words in path, content or origin, in sections."""
    wanted = words.casefold().split()
    lines = [(section_of(field.field), FieldLine("", text_of(field.value), field)) for field in fields]
    matching = [
        (title, line._replace(key=line.field.field.removeprefix(title).lstrip(".")))
        for title, line in lines
        if line.field.origin in _ORIGINS[shown]
        and all(word in f"{line.field.field} {line.text} {line.field.text}".casefold() for word in wanted)
    ]
    return [
        FileSection(title, [line for _, line in of_section])
        for title, of_section in groupby(matching, key=lambda titled: titled[0])
    ]


def section_of(path: str) -> str:
    """Returns the section of a field: its first key, of a stage with the stage."""
    match = _SECTION.match(path)
    return match[1] if match else _HEAD


def text_of(content: Any) -> str:
    """Returns a content as written on the page: text as it is, all else, and empty text, as JSON."""
    return content if isinstance(content, str) and content else msgspec.json.encode(content).decode()


def difference_texts(contents: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the contents of a differing field; `–` for a run without the field."""
    return [text_of(content["value"]) if "value" in content else "–" for content in contents]
