"""`NamingMark`: marks the fields of an experiment file that name something outside of it: a path, a URL, a variable.

Every field of free text or of a free mapping carries a mark; a test fails for one that does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.schema.section import LocalPath, Section
from rftd.streams.spec.declaration import NameKind, NamingMark


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
