"""`validate` checks data against the schema: the outcome is an `Experiment`, or all errors."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rftd.daemon.config import normalise
from rftd.daemon.config.client_side import is_secret_path
from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.gaps import gap_issues
from rftd.daemon.config.grammar import read_scalar
from rftd.daemon.config.issue import Issue, UnknownField, WrongValue
from rftd.daemon.config.schema.algorithm import CORRECTION_KINDS
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.policy import POLICY_KINDS
from rftd.daemon.config.schema.section import Section
from rftd.daemon.config.source import SourceMap
from rftd.ops import limits
from rftd.ops.redaction import MASK, redact

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}
"""Expected types in words, by pydantic's error."""
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
"""Errors of bounds: the words before a bound, and its name in pydantic's context."""
_KINDS = {"str": "text", "int": "number", "float": "number", "bool": "boolean", "list": "list", "dict": "mapping"}
"""Types of values in words."""


def validate(tree: dict[str, Any], source: SourceMap) -> tuple[Experiment | None, list[Issue]]:
    """Returns the experiment in `tree` (current spelling, plain data), or None and issues in the file's spelling."""
    gaps = gap_issues(tree)
    try:
        experiment = Experiment.model_validate(tree)
        return (None, gaps) if gaps else (experiment, [])
    except ValidationError as error:
        # A gap's missing type is not an error to report.
        missing = {gap.path for gap in gaps}
        details = [detail for detail in error.errors(include_url=False) if _path(detail) not in missing]
        shown = details[: limits.CONFIG_ERRORS]
        unexplained = details[limits.CONFIG_ERRORS :]
        # Searching for the nearest name is expensive, and the thousandth error is never read.
        return None, [
            *gaps,
            *(_issue(detail, source) for detail in shown),
            *(Issue(detail["loc"], detail["msg"]) for detail in unexplained),
        ]


def _tagged_path(detail: ErrorDetails) -> FieldPath:
    """Returns the path of an error with the kinds included by pydantic."""
    return tuple(step for step in detail["loc"] if step != "[key]")


def _path(detail: ErrorDetails) -> FieldPath:
    """Returns the path of an error as in the file."""
    tagged = _tagged_path(detail)
    # For a section with kinds pydantic includes the kind, absent from the file's path.
    return tuple(step for depth, step in enumerate(tagged) if not _names_a_kind(tagged, depth))


def _issue(detail: ErrorDetails, source: SourceMap) -> Issue:
    """Returns one of pydantic's errors as an issue, with a fix."""
    tagged = _tagged_path(detail)
    path = _path(detail)
    kind = detail["type"]
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        # Both unions are discriminated by kind: known fields are the fields of the kind written.
        kinds = CORRECTION_KINDS if "corrections" in tagged else POLICY_KINDS
        return _unknown_field_issue(path, next((kinds[str(step)] for step in tagged if step in kinds), None))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        if not isinstance(detail["input"], dict):
            return Issue(path, f"expected a mapping, got {_describe(detail['input'], path)}", None, WrongValue)
        return _missing_kind_issue((*path, "kind"), context.get("tag"))
    actual = _describe(detail["input"], path)
    if kind == "missing":
        return Issue(path, "is required", f"write {show(path)}", WrongValue)
    if kind == "literal_error":
        allowed = str(context.get("expected", ""))
        near = difflib.get_close_matches(
            str(detail["input"]), [word.strip("'") for word in allowed.split("'")[1::2]], 1
        )
        fix = f"did you mean {near[0]!r}?" if near else None
        return Issue(path, f"expected {allowed}, got {actual}", fix, WrongValue)
    if kind in _EXPECTED:
        word = None if is_secret_path(path) else source.word(path)
        if isinstance(detail["input"], bool) and word:
            actual = f"{word}, which YAML reads as {str(detail['input']).lower()}"
        fix = _type_fix(kind, detail["input"], word or (MASK if is_secret_path(path) else str(detail["input"])))
        return Issue(path, f"expected {_EXPECTED[kind]}, got {actual}", fix, WrongValue)
    message = detail["msg"][:1].lower() + detail["msg"][1:].replace("Input ", "").replace("input ", "")
    return Issue(path, f"{message.removeprefix('input ')}, got {actual}", _bound_fix(path, kind, context), WrongValue)


def _names_a_kind(tagged: FieldPath, depth: int) -> bool:
    """True if the step of a path is a kind inserted by pydantic."""
    before = tagged[max(0, depth - 2) : depth]
    return before[-1:] == ("policy",) or (before[:1] == ("corrections",) and len(before) == 2)


def _describe(value: Any, path: FieldPath) -> str:
    """Returns a value in words for an error, secrets masked."""
    # The text of an environment variable has the type EnvText.
    kind = "text" if isinstance(value, str) else _KINDS.get(type(value).__name__, type(value).__name__)
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict | list):
        return f"a {kind}"
    if is_secret_path(path):
        return MASK
    text = repr(redact(value, str(path[-1]) if path else ""))
    return f"the {kind} {text if len(text) <= 80 else text[:77] + '...'}"


def _type_fix(kind: str, value: Any, word: str) -> str | None:
    """Returns advice on a value of another type; `word` is the value as written."""
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'quote it: "{word}"'
    if kind == "string_type" and value is None:
        return "write a text, or leave the field out"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str):
        return "write it without quotes" if isinstance(read_scalar(value.strip()), bool | int | float) else None
    if kind == "int_from_float":
        return f"write {int(value)}" if isinstance(value, float) and value == value // 1 else None
    return None


def _bound_fix(path: FieldPath, kind: str, context: dict[str, Any]) -> str | None:
    """Returns advice on a number beyond a bound; None for another error, or for a field without a default."""
    words, bound = _BOUNDS.get(kind, ("", ""))
    model = _model_of(path[:-1])
    field = model.model_fields.get(str(path[-1])) if model is not None and path else None
    if bound not in context or field is None or field.is_required():
        return None
    return f"write {words} {context[bound]:g}, or leave it out"


def _missing_kind_issue(path: FieldPath, kind: str | None) -> Issue:
    """Returns the issue of a policy or correction with a missing or unknown kind."""
    noun, known_kinds = (
        ("correction", list(CORRECTION_KINDS)) if "corrections" in path else ("policy", list(POLICY_KINDS))
    )
    if kind is None:
        return Issue(path, "is required", f"one of {', '.join(known_kinds)}", WrongValue)
    near = difflib.get_close_matches(kind, known_kinds, 1)
    fix = f"did you mean {near[0]!r}? " if near else "a third party's is kind: plugin with its name; "
    return Issue(path, f"no {noun} {kind!r}", f"{fix}known: {', '.join(known_kinds)}", WrongValue)


def _unknown_field_issue(path: FieldPath, model: type[Section] | None = None) -> Issue:
    """Returns the issue of an unknown field, with the nearest known one."""
    name = str(path[-1])
    section = path[:-1]
    # Older names count as known: a typing error in an older name is still close to the name.
    known_names = [*(model.model_fields if model else _names(section)), *normalise.old_names(section)]
    near = difflib.get_close_matches(name, known_names, 1, 0.6)
    location = f" in {show(section)}" if section else ""
    if near:
        return Issue(path, f"unknown field{location}", f"did you mean {near[0]!r}?", UnknownField, at_key=True)
    elsewhere = _elsewhere(name)
    if elsewhere:
        return Issue(path, f"unknown field{location}", f"did you mean {elsewhere}?", UnknownField, at_key=True)
    fix = (
        f"known here: {', '.join(known_names[:12])}" + (", ..." if len(known_names) > 12 else "")
        if known_names
        else None
    )
    return Issue(path, f"unknown field{location}", _verl_fix(path) or fix, UnknownField, at_key=True)


def _verl_fix(path: FieldPath) -> str | None:
    """Returns advice for a section or key of veRL; None for a name unknown to veRL."""
    from rftd.daemon.config.verl.table import is_known, is_section

    name = show(path)
    if is_section(name):
        return (
            "it is veRL's: write it below trainer.trainer_config, or its file in trainer.trainer_config_path; "
            "`rftd import-verl` makes an experiment file of one of veRL's"
        )
    return f"it is veRL's: write it as trainer.trainer_config.{name}" if is_known(name) else None


def nearest_field(path: FieldPath) -> FieldPath | None:
    """Returns the field probably meant by an unknown path: a similar name in the section, or the same name in another
    one; else None.
    """
    name = str(path[-1])
    section = path[:-1]
    if near := difflib.get_close_matches(name, _names(section), 1, 0.6):
        return (*section, near[0])
    exact = [field for field in all_fields() if field[-1] == name]
    stage = path[:2] if path[0] == "stages" else ()
    return (*stage, *exact[0]) if len(exact) == 1 else None


def _names(section: FieldPath) -> list[str]:
    """Returns the fields of a section in the schema."""
    model = _model_of(section)
    return list(model.model_fields) if model else []


def _model_of(section: FieldPath) -> type[Section] | None:
    """Returns the schema's model of a section; None for an unknown one."""
    model: type[Section] | None = Experiment
    for step in section:
        if model is None:
            return None
        if isinstance(step, str) and step in model.model_fields:
            model = _section_of(model.model_fields[step].annotation)
        # An index, or a name in a mapping of sections, stays in the section found before.
    return model


def _section_of(annotation: Any) -> type[Section] | None:
    """Returns the section class in a type; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((section for argument in get_args(annotation) if (section := _section_of(argument))), None)


@functools.cache
def all_fields() -> tuple[FieldPath, ...]:
    """Returns the path of every field in the schema, outside `stages`; fields of list items are named under
    the list.
    """
    return tuple(_fields_below(Experiment, ()))


def _fields_below(model: type[Section], path: FieldPath) -> Iterator[FieldPath]:
    """Yields the paths of all fields below a section class."""
    for name, field in model.model_fields.items():
        if path == () and name == "stages":
            continue
        yield (*path, name)
        below = _section_of(field.annotation)
        if below is not None:
            yield from _fields_below(below, (*path, name))


def _elsewhere(name: str) -> str | None:
    """Returns the field of the same or the nearest name in another section; None if no name is near."""
    fields = all_fields()
    # For a field in the wrong section, the right section is worth more than a similar name.
    exact = [path for path in fields if path[-1] == name]
    near = exact or [
        path
        for word in difflib.get_close_matches(name, {str(p[-1]) for p in fields}, 1, 0.8)
        for path in fields
        if path[-1] == word
    ]
    return show(min(near, key=len)) if near else None
