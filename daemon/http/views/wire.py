"""Typed rows as JSON and back: `submitted_ns` travels as `submitted_at`, ISO-8601 UTC.

Nanoseconds do not fit the numbers of a browser. Ids are text, seconds are numbers.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from rftd.ops.clock import iso, time_ns_of
from rftd.ops.decoding import converted, type_info_of

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """The value as JSON text."""
    return msgspec.json.encode(to_wire(value))


def to_wire(value: Any) -> Any:
    """Structs as dicts under the names of the wire; NaN and infinities as null."""
    if isinstance(value, msgspec.Struct):
        return {
            wire_name(name): _time(field) if name.endswith("_ns") else to_wire(field)
            for name, field in ((name, getattr(value, name)) for name in value.__struct_fields__)
        }
    if isinstance(value, list | tuple):
        return [to_wire(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_wire(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_wire(value: Any, kind: type[T]) -> T:
    """The struct that `to_wire` made this of, its times to the millisecond. Raises msgspec.ValidationError.

    What is not a field of `kind` is passed over: a newer daemon may send more.
    """
    return converted(_back(value, type_info_of(kind)), kind)


def wire_name(field: str) -> str:
    """The name of a field on the wire."""
    return f"{field.removesuffix('_ns').removesuffix('_at')}_at" if field.endswith("_ns") else field


def _back(value: Any, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.UnionType):
        # A type or None, as all unions of views are; with two types nothing would say which of them was sent.
        [inner] = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        return None if value is None else _back(value, inner)
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        sent = [field for field in kind.fields if wire_name(field.name) in value]
        return {field.name: _field(value[wire_name(field.name)], field) for field in sent}
    if isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
        return [_back(item, kind.item_type) for item in value]
    if isinstance(kind, inspect.FloatType) and value is None:
        # `to_wire` sent NaN and infinities as null, for JSON has neither; which of them it was is lost.
        return math.nan
    return value


def _field(value: Any, field: inspect.Field) -> Any:
    if field.name.endswith("_ns"):
        return None if value is None else time_ns_of(value)
    return _back(value, field.type)


def _time(value: int | None) -> str | None:
    return None if value is None else iso(value)
