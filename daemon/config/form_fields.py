"""`form_fields`: the declared fields of an experiment file for a form; `argument_fields`: those of its parts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, get_type_hints

import msgspec

from rftd.daemon.config.json_schema import json_schema
from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.streams.spec.declaration import InUnit

FieldKind = Literal["number", "flag", "words", "text", "yaml"]
"""Kind of an input in the studio: a number, a switch, a choice of words, a text, or YAML."""
_KINDS: Final[dict[str, FieldKind]] = {
    "integer": "number",
    "number": "number",
    "boolean": "flag",
    "string": "text",
}
"""Kind of form field by JSON Schema type; fields of other types are edited as YAML."""
_NO_FIELDS: Final = frozenset({"derived", "sources"})
"""Sections left out of forms, because rftd fills them in."""
_REFERENCE: Final = "#/$defs/Reference"
"""Reference to the schema of `${...}`, which forms leave out."""


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a form: its path in the file, kind of input, bounds, default and effect."""

    path: str
    section: str
    """First name of the path, `general` for fields outside of sections; name of the part for an argument."""
    kind: FieldKind
    words: list[str] = []
    """Allowed words of a field of kind `words`."""
    text: str = ""
    default: str = ""
    """Default as YAML; empty without a default, or for a default depending on other fields."""
    minimum: float | None = None
    maximum: float | None = None


@cache
def form_fields() -> tuple[FormField, ...]:
    """Returns every field with an effect, in the order of the file."""
    schema = json_schema()
    return tuple(_fields(schema["properties"], schema["$defs"], ""))


def argument_fields(name: str, arguments: str, plugins: Plugins[Any]) -> list[FormField]:
    """Returns the declared arguments of a part, below the path `arguments`; empty for an undeclared part."""
    try:
        declaration = plugins.declaration(name)
    except ConfigError:  # its dependencies are not installed, or no part has this name: the check says so
        return []
    if declaration is None:
        return []
    factory = plugins.load(name)
    schema = msgspec.json.schema(declaration.kind)
    [properties] = [
        kind["properties"] for kind in schema["$defs"].values() if kind["title"] == declaration.kind.__name__
    ]
    hints = get_type_hints(declaration.kind, include_extras=True)
    defaults = dict(_defaults(factory))
    fields: list[FormField] = []
    for argument, property in properties.items():
        if argument in declaration.ignored:
            continue
        shape = {**property, **({"default": defaults[argument]} if argument in defaults else {})}
        unit = next((mark.name for mark in _marks(hints[argument]) if isinstance(mark, InUnit)), "")
        field = _field(shape, f"{arguments}.{argument}", name)
        fields.append(
            msgspec.structs.replace(field, text=" ".join([field.text, f"In {unit}." if unit else ""]).strip())
        )
    return fields


def _fields(properties: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str) -> Iterator[FormField]:
    for name, property in properties.items():
        path = f"{prefix}{name}"
        if property.get("deprecated") or path in _NO_FIELDS:
            continue
        kinds = _kinds(property)
        section = definitions[kinds[0]["$ref"].rpartition("/")[2]] if len(kinds) == 1 and "$ref" in kinds[0] else {}
        if "properties" in section:
            yield from _fields(section["properties"], definitions, f"{path}.")
        else:
            yield _field(property, path, path.partition(".")[0] if "." in path else "general")


def _field(property: Mapping[str, Any], path: str, section: str) -> FormField:
    kinds = _kinds(property)
    words = [str(word) for kind in kinds for word in kind.get("enum", ()) if word is not None]
    types = {kind.get("type") for kind in kinds}
    if words and len(kinds) == 1:
        kind: FieldKind = "words"
    else:
        kind = _KINDS.get(str(next(iter(types))), "yaml") if len(types) == 1 else "yaml"
        words = []
    numbers = [bounded for bounded in kinds if kind == "number"]
    default = property.get("default")
    return FormField(
        path=path,
        section=section,
        kind=kind,
        words=words,
        text=property.get("description", ""),
        default="" if default in (None, "", [], {}) else msgspec.json.encode(default).decode().strip('"'),
        minimum=_bound(numbers, "minimum", "exclusiveMinimum"),
        maximum=_bound(numbers, "maximum", "exclusiveMaximum"),
    )


def _kinds(property: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the alternatives of a property without null and without `${...}`."""
    alternatives: list[Mapping[str, Any]] = property.get("anyOf", [property])
    return [kind for kind in alternatives if kind.get("type") != "null" and kind.get("$ref") != _REFERENCE]


def _bound(kinds: list[Mapping[str, Any]], *names: str) -> float | None:
    return next((float(kind[name]) for kind in kinds for name in names if name in kind), None)


def _defaults(factory: Any) -> Iterator[tuple[str, Any]]:
    for parameter in inspect.signature(factory).parameters.values():
        if isinstance(parameter.default, bool | int | float | str):
            yield parameter.name, parameter.default


def _marks(hint: Any) -> Iterator[Any]:
    yield from getattr(hint, "__metadata__", ())
    for inner in getattr(hint, "__args__", ()):
        yield from _marks(inner)
