"""`json_schema` describes an experiment file for editors and other programs; `documented` reads the texts of fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from pydantic.fields import FieldInfo

from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import Section, mark_of
from rftd.streams.spec.declaration import InUnit, Upstream

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
"""Dialect of JSON Schema."""
_REFERENCE: Final = {"type": "string", "pattern": r"\$\{"}
"""Schema of a `${...}`, allowed for any value until resolved by the client."""
_ABOUT: Final = (
    "An experiment file of rftd, in current field names and words of lower case; older names, and words in any case, "
    "are read as well. Contradictions between fields are found by `rftd config check`."
)
"""Description of the whole schema."""


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of an experiment file: each field with type, bounds, words, default and effect."""
    schema = Experiment.model_json_schema()
    sections = {section.__name__: section for section in _sections(Experiment)}
    definitions: dict[str, Any] = schema["$defs"]
    for name, definition in definitions.items():
        _describe(definition, sections.get(name))
    _describe(schema, Experiment)
    definitions["Reference"] = dict(_REFERENCE)
    return {"$schema": DIALECT, **schema, "title": "rftd experiment", "description": _ABOUT}


_EFFECTS: Final = {"harmless": "Has no effect", "refused": "Refused if set", "checked": "Only checked"}
"""Words for fields without effect, by the mark."""


def _describe(definition: dict[str, Any], section: type[Section] | None) -> None:
    """Adds descriptions to the fields of a section, and allows a `${...}` for each."""
    properties: dict[str, dict[str, Any]] = definition.get("properties", {})
    texts = documented(section) if section is not None else {}
    for name, field in properties.items():
        field.pop("title", None)
        field.pop("mark", None)
        info = section.model_fields.get(name) if section is not None else None
        text = texts.get(name) or field.pop("description", "")
        outer: dict[str, Any] = {}
        if info is not None:
            mark = mark_of(info)
            unit = unit_of(info)
            effect = _EFFECTS.get(mark.effect, "")
            differs = upstream_of(info)
            parts = [
                text,
                f"In {unit}." if unit else "",
                f"Upstream: {differs}" if differs else "",
                f"{effect}{f': {mark.why}' if mark.why else ''}." if effect else "",
            ]
            text = " ".join(sentence for sentence in parts if sentence)
            if mark.effect in ("harmless", "refused"):
                outer["deprecated"] = True
        if "default" in field:
            outer["default"] = field.pop("default")
        if text:
            outer["description"] = " ".join(text.split())
        if "$ref" in field and info is not None and "default" not in outer:
            # An empty section is all defaults.
            field = {"anyOf": [field, {"type": "null"}]}
        properties[name] = {**_or_reference(field), **outer}


def _or_reference(field: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of a field that may also be a `${...}`."""
    kinds = field.get("anyOf", [field])
    if any(not kind or (kind.get("type") == "string" and "enum" not in kind) for kind in kinds):
        return field  # any text is accepted
    return {"anyOf": [*kinds, {"$ref": "#/$defs/Reference"}]}


def _sections(section: type[Section]) -> Iterator[type[Section]]:
    """Yields the section and all nested sections; a section used by several fields is yielded once for each."""
    yield section
    for info in section.model_fields.values():
        for inner_section in _sections_in(info.annotation):
            yield from _sections(inner_section)


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    """Yields the section classes in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    else:
        for argument in get_args(annotation):
            yield from _sections_in(argument)


def unit_of(info: FieldInfo) -> str:
    """Returns the unit of a field's number; empty for a field without a unit."""
    return next((mark.name for mark in _marks(info.annotation, info.metadata) if isinstance(mark, InUnit)), "")


def upstream_of(info: FieldInfo) -> str:
    """Returns the differing default or meaning in the guide or in Trinity-RFT; empty if equal."""
    return next((mark.text for mark in _marks(info.annotation, info.metadata) if isinstance(mark, Upstream)), "")


def _marks(annotation: Any, metadata: Iterable[Any]) -> Iterator[Any]:
    """Yields all metadata annotated on a type, including the members of a union."""
    yield from metadata
    if get_origin(annotation) is Annotated:
        kind, *marks = get_args(annotation)
        yield from _marks(kind, marks)
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _marks(member, ())


@cache
def documented(section: type[Section]) -> dict[str, str]:
    """Returns the texts below the fields in the source, of the section and of all base classes."""
    texts: dict[str, str] = {}
    for kind in reversed((section.declaration or section).__mro__):
        if not issubclass(kind, Section | msgspec.Struct) or kind is Section:
            continue
        try:
            source = textwrap.dedent(inspect.getsource(kind))
        except (OSError, TypeError):  # a section generated from the arguments of a part has no source
            continue
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in pairwise(body.body):
            if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
                assert isinstance(statement.target, ast.Name)
                assert isinstance(after.value, ast.Constant)
                texts[statement.target.id] = str(after.value.value)
    return texts
