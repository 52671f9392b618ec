"""`json_schema` describes an experiment file for editors and other programs; `documented` reads what a section says."""

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
_REFERENCE: Final = {"type": "string", "pattern": r"\$\{"}
"""`${...}`, which may stand for any value until the client resolves it."""
_ABOUT: Final = (
    "An experiment file of rftd, in current field names and words of lower case; older names, and words in any case, "
    "are read as well. What contradicts itself across fields is found by `rftd config check`."
)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of an experiment file: every field with its type, bounds, words, default and effect."""
    schema = Experiment.model_json_schema()
    sections = {each.__name__: each for each in _sections(Experiment)}
    definitions: dict[str, Any] = schema["$defs"]
    for name, definition in definitions.items():
        _describe(definition, sections.get(name))
    _describe(schema, Experiment)
    definitions["Reference"] = dict(_REFERENCE)
    return {"$schema": DIALECT, **schema, "title": "rftd experiment", "description": _ABOUT}


_EFFECTS: Final = {"harmless": "Has no effect", "refused": "Refused if it is set", "checked": "Is checked alone"}


def _describe(definition: dict[str, Any], section: type[Section] | None) -> None:
    """Says of each field what it is, and lets a `${...}` stand in its place."""
    properties: dict[str, dict[str, Any]] = definition.get("properties", {})
    said = documented(section) if section is not None else {}
    for name, field in properties.items():
        field.pop("title", None)
        field.pop("mark", None)
        info = section.model_fields.get(name) if section is not None else None
        text = said.get(name) or field.pop("description", "")
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
            text = " ".join(part for part in parts if part)
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
    kinds = field.get("anyOf", [field])
    if any(not kind or (kind.get("type") == "string" and "enum" not in kind) for kind in kinds):
        return field  # it takes any text
    return {"anyOf": [*kinds, {"$ref": "#/$defs/Reference"}]}


def _sections(section: type[Section]) -> Iterator[type[Section]]:
    """The section and all that its fields hold; a section that many hold comes once for each."""
    yield section
    for info in section.model_fields.values():
        for held in _held(info.annotation):
            yield from _sections(held)


def _held(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    else:
        for part in get_args(annotation):
            yield from _held(part)


def unit_of(info: FieldInfo) -> str:
    """The unit of a field's number; empty if it has none."""
    return next((each.name for each in _marks(info.annotation, info.metadata) if isinstance(each, InUnit)), "")


def upstream_of(info: FieldInfo) -> str:
    """The field's default or meaning in the guide or in Trinity-RFT, where it differs; empty if it is the same."""
    return next((each.text for each in _marks(info.annotation, info.metadata) if isinstance(each, Upstream)), "")


def _marks(annotation: Any, metadata: Iterable[Any]) -> Iterator[Any]:
    """Everything that is said of a type beside what it is, of each type of a choice too."""
    yield from metadata
    if get_origin(annotation) is Annotated:
        kind, *marks = get_args(annotation)
        yield from _marks(kind, marks)
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _marks(part, ())


@cache
def documented(section: type[Section]) -> dict[str, str]:
    """The texts that stand below the fields in the source, of the section and of those that it extends."""
    found: dict[str, str] = {}
    for kind in reversed((section.declaration or section).__mro__):
        if not issubclass(kind, Section | msgspec.Struct) or kind is Section:
            continue
        try:
            source = textwrap.dedent(inspect.getsource(kind))
        except (OSError, TypeError):  # a section that is made of the arguments of a part has none
            continue
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in pairwise(body.body):
            if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
                assert isinstance(statement.target, ast.Name)
                assert isinstance(after.value, ast.Constant)
                found[statement.target.id] = str(after.value.value)
    return found
