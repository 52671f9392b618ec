"""Typed rows as JSON and back: `submitted_ns` travels as `submitted_at`, ISO-8601 UTC.

Nanoseconds do not fit the numbers of a browser. Ids are text, seconds are numbers.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from rftd.ops.clock import iso, time_ns_of
from rftd.ops.decoding import converted, type_info_of

T = TypeVar("T")
"""Struct decoded from the wire."""

_PLAIN: Final = frozenset({int, str, bool, type(None)})
"""Types sent as they are."""


def encode(value: Any) -> bytes:
    """Returns the object as JSON text in its form on the wire."""
    return msgspec.json.encode(to_wire(value))


def to_wire(value: Any) -> Any:
    """Returns structs as dicts under their names on the wire; NaN and infinities as null."""
    kind = value.__class__
    if kind in _PLAIN:
        return value
    if isinstance(value, msgspec.Struct):
        sent: dict[str, Any] = {}
        for name, field_name, is_time in _names_of(kind):
            field = getattr(value, name)
            # A call for each of thousands of fields would cost more than all else of a page.
            if is_time:
                sent[field_name] = None if field is None else iso(field)
            else:
                sent[field_name] = field if field.__class__ in _PLAIN else to_wire(field)
        return sent
    if isinstance(value, list | tuple):
        return [
            element
            if (kind := element.__class__) in _PLAIN or (kind is float and math.isfinite(element))
            else to_wire(element)
            for element in value
        ]
    if isinstance(value, dict):
        return {
            str(key): element if element.__class__ in _PLAIN else to_wire(element) for key, element in value.items()
        }
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@cache
def _names_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, bool], ...]:
    """Returns the fields of a struct with their names on the wire; true for times."""
    return tuple((name, wire_name(name), name.endswith("_ns")) for name in kind.__struct_fields__)


def from_wire(value: Any, kind: type[T]) -> T:
    """Returns the struct encoded by `to_wire`, its times to the millisecond. Raises msgspec.ValidationError.

    Unknown fields are skipped: a newer daemon may send more.
    """
    return converted(_back(value, type_info_of(kind)), kind)


def wire_name(field: str) -> str:
    """Returns the name of a field on the wire."""
    return f"{field.removesuffix('_ns').removesuffix('_at')}_at" if field.endswith("_ns") else field


def _back(value: Any, kind: inspect.Type) -> Any:
    """Returns a value from the wire with times and field names as in the type, ready for conversion."""
    if isinstance(kind, inspect.UnionType):
        # A type or None, as all unions of views are; with two types the sent one could not be identified.
        [inner] = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        return None if value is None else _back(value, inner)
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        sent = [field for field in kind.fields if wire_name(field.name) in value]
        return {field.name: _field(value[wire_name(field.name)], field) for field in sent}
    if isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        return [_back(element, kind.item_type) for element in value]
    if isinstance(kind, inspect.FloatType) and value is None:
        # `to_wire` sent NaN and infinities as null, because JSON has neither; the original is lost.
        return math.nan
    return value


def _field(value: Any, field: inspect.Field) -> Any:
    """Returns a field's value from the wire; of a time, Unix time in nanoseconds."""
    if field.name.endswith("_ns"):
        return None if value is None else time_ns_of(value)
    return _back(value, field.type)
