"""`differing`: the fields with different contents in several resolved experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rftd.daemon.config.field_path import FieldPath

_OWN: Final = ("name", "derived")
"""Fields of a resolved experiment specific to each experiment, or derived from other fields."""

Difference = tuple["FieldPath", list[Any]]
"""A field with its content in each experiment; `NoField` for an experiment without the field."""


class NoField:
    """Stands for a field missing in an experiment."""


def differing(files: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Yields the differing fields of resolved experiments, in the order of the first one with the field."""
    leaves = [dict(_leaves({key: content for key, content in file.items() if key not in _OWN})) for file in files]
    for path in dict.fromkeys(path for fields in leaves for path in fields):
        contents = [fields.get(path, NoField) for fields in leaves]
        if any(content != contents[0] for content in contents):
            yield path, contents


def _leaves(node: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Yields the fields below a node; a list of scalars is one field."""
    if isinstance(node, dict) and (node or not path):
        for key, child in node.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(node, list) and any(isinstance(element, dict) for element in node):
        for number, element in enumerate(node):
            yield from _leaves(element, (*path, number))
    else:
        yield path, node
