"""`NamingMark` marks fields of an experiment file referring to the outside world: a path, a URL, a variable.

Every field of free text or of a free mapping must carry a mark, enforced by a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.schema.section import LocalPath, Section
from rftd.streams.spec.declaration import NameKind, NamingMark


class NamedValue(NamedTuple):
    """A value written in an experiment file that names something outside it, such as a path, URL or variable."""

    kind: NameKind
    """Kind of thing named by the value."""
    path: FieldPath
    """Path of the field."""
    value: Any
    """Value as written."""


def kind_of(field: FieldInfo) -> NameKind | None:
    """Returns the field's `NameKind`; None for a field without a mark."""
    for mark in field.metadata:
        if isinstance(mark, NamingMark):
            return mark.kind
    return NameKind.PATH if any(isinstance(mark, LocalPath) for mark in field.metadata) else None


def named_values(section: Section, path: FieldPath = ()) -> Iterator[NamedValue]:
    """Yields the marked, non-empty values below a section set by the file."""
    for name, field in type(section).model_fields.items():
        setting = getattr(section, name)
        kind = kind_of(field)
        if kind is None:
            yield from _below(setting, (*path, name))
        elif name in section.model_fields_set and setting not in (None, "", {}, [], False):
            yield NamedValue(kind, (*path, name), setting)


def _below(node: Any, path: FieldPath) -> Iterator[NamedValue]:
    """Yields the marked values below a section, a list or a mapping."""
    if isinstance(node, Section):
        yield from named_values(node, path)
    elif isinstance(node, list | dict):
        for key, child in enumerate(node) if isinstance(node, list) else node.items():
            yield from _below(child, (*path, key))
