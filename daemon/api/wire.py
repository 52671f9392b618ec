"""Typed rows as JSON, and the JSON schema of that: `submitted_ns` travels as `submitted_at`, ISO-8601 UTC.

Nanoseconds do not fit the numbers of a browser. Ids are text, seconds are numbers.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response

from rftd.ops.clock import iso


def respond(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The value as a JSON answer."""
    return Response(encode(value), status_code=status, media_type="application/json", headers=headers)


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


def wire_name(field: str) -> str:
    """How a field is called on the wire."""
    return f"{field.removesuffix('_ns').removesuffix('_at')}_at" if field.endswith("_ns") else field


def schemas(kinds: list[type[msgspec.Struct]], *, asked: list[type[msgspec.Struct]]) -> dict[str, Any]:
    """The JSON schemas of what `to_wire` makes of these structs and of those within them, by name.

    Those that are `asked` for come from a client, as they are.
    """
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    as_they_are = {kind.__name__ for kind in asked}
    return {name: schema if name in as_they_are else _on_the_wire(schema) for name, schema in components.items()}


def _time(value: int | None) -> str | None:
    return None if value is None else iso(value)


def _on_the_wire(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    renamed = {wire_name(name): _as_time(part) if name.endswith("_ns") else part for name, part in properties.items()}
    # `to_wire` leaves nothing out.
    return {**schema, "properties": renamed, "required": sorted(renamed)} if properties else schema


def _as_time(part: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string", "format": "date-time"}
    nullable = any(choice.get("type") == "null" for choice in part.get("anyOf", ()))
    return {"anyOf": [text, {"type": "null"}]} if nullable else text
