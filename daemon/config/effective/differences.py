"""`differing`: the fields with different contents in several resolved experiments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rftd.daemon.config.field_path import leaves

if TYPE_CHECKING:
    from rftd.daemon.config.field_path import FieldPath

_PER_EXPERIMENT_FIELDS: Final = ("name", "derived")
"""Fields of a resolved experiment specific to each experiment, or derived from other fields."""

Difference = tuple["FieldPath", list[Any]]
"""A field with its content in each experiment; `NoField` for an experiment without the field."""


class NoField:
    """Stands for a field missing in an experiment."""


def differing(files: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Yields the differing fields of resolved experiments, in the order of the first one with the field."""
    own = [{key: content for key, content in file.items() if key not in _PER_EXPERIMENT_FIELDS} for file in files]
    contents_by_path = [dict(leaves(file)) for file in own]
    for path in dict.fromkeys(path for fields in contents_by_path for path in fields):
        contents = [fields.get(path, NoField) for fields in contents_by_path]
        if any(content != contents[0] for content in contents):
            yield path, contents
