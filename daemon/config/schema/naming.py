"""`NamingMark`: marks the fields of an experiment file that name something outside of it: a path, a URL, a variable.

Every field of free text or of a free mapping carries a mark; a test fails for one that does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pydantic.fields import FieldInfo

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.schema.section import LocalPath, Section


class NameKind(StrEnum):
    """The kind of thing that a field's value names."""

    PATH = "path"
    """A file or a folder."""
    PATH_PART = "path_part"
    """A file or a folder below another one."""
    URL = "url"
    """The address of a service that is asked, as text or as `{env: NAME}`."""
    ADDRESS = "address"
    """An address to listen on, or the address of a cluster."""
    VARIABLE = "variable"
    """A variable of the environment: its name, `{env: NAME}`, or a mapping of names to values."""
    CODE = "code"
    """A switch: true runs the code in a model's folder."""
    ARGUMENTS = "arguments"
    """A mapping of arguments that an engine or a plug-in interprets."""
    PLUGIN = "plugin"
    """The name of a part that the daemon's owner installed."""
    PLAIN = "plain"
    """Text that names nothing outside of the file."""


@dataclass(frozen=True, slots=True)
class NamingMark:
    """The annotation of a field with its `NameKind`."""

    kind: NameKind


PATH: Final = NamingMark(NameKind.PATH)
PATH_PART: Final = NamingMark(NameKind.PATH_PART)
URL: Final = NamingMark(NameKind.URL)
ADDRESS: Final = NamingMark(NameKind.ADDRESS)
VARIABLE: Final = NamingMark(NameKind.VARIABLE)
CODE: Final = NamingMark(NameKind.CODE)
ARGUMENTS: Final = NamingMark(NameKind.ARGUMENTS)
PLUGIN: Final = NamingMark(NameKind.PLUGIN)
PLAIN: Final = NamingMark(NameKind.PLAIN)


class NamedValue(NamedTuple):
    """A value of an experiment file, with the kind of thing that it names."""

    kind: NameKind
    path: FieldPath
    value: Any


def kind_of(field: FieldInfo) -> NameKind | None:
    """The field's `NameKind`; None for a field without a mark."""
    for mark in field.metadata:
        if isinstance(mark, NamingMark):
            return mark.kind
    return NameKind.PATH if any(isinstance(mark, LocalPath) for mark in field.metadata) else None


def named_values(section: Section, path: FieldPath = ()) -> Iterator[NamedValue]:
    """The marked values below a section that the file sets and that are not empty."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        kind = kind_of(field)
        if kind is None:
            yield from _below(value, (*path, name))
        elif name in section.model_fields_set and value not in (None, "", {}, [], False):
            yield NamedValue(kind, (*path, name), value)


def _below(value: Any, path: FieldPath) -> Iterator[NamedValue]:
    if isinstance(value, Section):
        yield from named_values(value, path)
    elif isinstance(value, list | dict):
        for key, item in enumerate(value) if isinstance(value, list) else value.items():
            yield from _below(item, (*path, key))
