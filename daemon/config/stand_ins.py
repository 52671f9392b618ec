"""Stand-ins for malformed fields, so that whatever else is wrong with a file is found in the same attempt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from rftd.daemon.config.field_path import FieldPath, child
from rftd.daemon.config.grammar import read_scalar
from rftd.daemon.config.issue import Issue, UnknownField
from rftd.daemon.config.resolve.experiment import resolve_experiment
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import Section
from rftd.daemon.config.source import SourceMap
from rftd.daemon.config.validation import nearest_field, validate
from rftd.ops import limits
from rftd.workers.devices.host import Host
from rftd.workers.learning.algorithms import registry

_LEFT_OUT: Final = object()
_ALGORITHM: Final = "algorithm_type"
_TEXTS: Final = ("/stand_in", "stand_in")
_NUMBERS: Final = (1, 2, 8, 64, 1024, 0.5)
_ATTEMPTS: Final = 4
"""Removals in a row, each of what the one before left incomplete."""


def found_beside(tree: dict[str, Any], issues: Iterable[Issue], source: SourceMap, host: Host) -> list[Issue]:
    """The contradictions that hold whatever the fields of `issues` are meant to say; those fields are left alone.

    Each field is replaced by several values that it may have, or is left out. What is found with one of them and not
    with another follows from the stand-in, and no error is made of it.
    """
    malformed = {issue.path: issue for issue in issues}
    # More than are shown hide the rest, and `report` says so.
    if not malformed or () in malformed or len(malformed) > limits.CONFIG_ERRORS:
        return []
    rest = _without(tree, malformed, source)
    if rest is None:
        return []
    fields = [list(_candidates(tree, rest, issue, source)) for issue in malformed.values()]
    kept: dict[tuple[FieldPath, str], Issue] | None = None
    for number in range(max(len(each) for each in fields)):
        variant = _copy(rest)
        for each in fields:
            _put(variant, *each[number % len(each)])
        experiment, wrong = validate(variant, source)
        if experiment is None or wrong:
            continue
        _, found = resolve_experiment(experiment, plain(experiment.model_dump(exclude_unset=True)), host=host)
        said = {(issue.path, issue.what): issue for issue in found}
        kept = said if kept is None else {key: issue for key, issue in kept.items() if key in said}
    own = [path for each in fields for path, _ in each] + list(malformed)
    beside = [issue for issue in (kept or {}).values() if not any(_below(issue.path, path) for path in own)]
    # A section that nothing is like may be the very one that is missing.
    if any(
        isinstance(_at(tree, path), dict) and _is_left_out(each) for path, each in zip(malformed, fields, strict=True)
    ):
        return [issue for issue in beside if _at(tree, issue.path) is not None]
    return beside


def _is_left_out(candidates: list[tuple[FieldPath, Any]]) -> bool:
    return all(value is _LEFT_OUT for _, value in candidates)


def _at(tree: dict[str, Any], path: FieldPath) -> Any:
    node: Any = tree
    for part in path:
        node = child(node, part)
    return node


def _without(tree: dict[str, Any], malformed: Iterable[FieldPath], source: SourceMap) -> dict[str, Any] | None:
    """The tree without these fields, valid; None if no such tree is found."""
    rest: dict[str, Any] = _copy(tree)
    for path in malformed:
        _remove(rest, path)
    for _ in range(_ATTEMPTS):
        experiment, wrong = validate(rest, source)
        if experiment is not None:
            return rest
        for issue in wrong:
            text = _field(issue.path)
            if text is not None and text.annotation is str and text.is_required():
                _put(rest, issue.path, "stand_in")
            else:
                _remove(rest, issue.path[:-1])
    return None


def _remove(tree: dict[str, Any], path: FieldPath) -> None:
    """Removes the field; of an item of a list, the list: the places of the others must stay."""
    while path:
        node = _at(tree, path[:-1])
        if isinstance(node, dict):
            node.pop(path[-1], None)
            return
        path = path[:-1]


def _put(tree: dict[str, Any], path: FieldPath, value: Any) -> None:
    """Sets the field, unless it is to be left out or its section is no mapping."""
    if value is _LEFT_OUT:
        return
    node: Any = tree
    for part in path[:-1]:
        if isinstance(node, dict) and node.get(part) is None:
            node[part] = {}
        node = child(node, part)
    if isinstance(node, dict):
        node[path[-1]] = value


def _candidates(
    tree: dict[str, Any], rest: dict[str, Any], issue: Issue, source: SourceMap
) -> Iterator[tuple[FieldPath, Any]]:
    """Fields with the values that they may have in the place of a malformed one; at least one."""
    yielded = False
    for path, value in _meant(tree, issue):
        variant = _copy(rest)
        _put(variant, path, value)
        experiment, _ = validate(variant, source)
        if experiment is not None:
            yielded = True
            yield path, value
    if not yielded:
        yield issue.path, _LEFT_OUT


def _meant(tree: dict[str, Any], issue: Issue) -> list[tuple[FieldPath, Any]]:
    path = issue.path
    given = _at(tree, path)
    if issue.kind is UnknownField:
        near = nearest_field(path)
        return [(near, given)] if near is not None and _at(tree, near) is None else []
    return [(path, value) for value in _values(path, given)]


def _values(path: FieldPath, given: Any) -> list[Any]:
    field = _field(path)
    if path[-2:] == ("algorithm", _ALGORITHM):
        near = difflib.get_close_matches(str(given), registry.names(), 1)
        return near or [_LEFT_OUT, "grpo", "sft"]
    if field is None:
        return []
    values: list[Any] = [_LEFT_OUT]
    for kind in _kinds(field.annotation):
        if get_origin(kind) is Literal:
            words = [word for word in get_args(kind) if isinstance(word, str)]
            if near := difflib.get_close_matches(str(given), words, 1):
                return list(near)
            values += words
        elif kind is bool:
            values += [True, False]
        elif kind in (int, float):
            number = read_scalar(given.strip()) if isinstance(given, str) else None
            if isinstance(number, int | float) and not isinstance(number, bool):
                return [number]
            values += _NUMBERS
        elif kind is str:
            values += _TEXTS
    return values


def _kinds(annotation: Any) -> Iterator[Any]:
    if annotation in (int, float, str, bool) or get_origin(annotation) is Literal:
        yield annotation
    elif get_origin(annotation) not in (list, dict):
        for part in get_args(annotation):
            yield from _kinds(part)


def _field(path: FieldPath) -> FieldInfo | None:
    """The schema's field; None where it has none of this path."""
    model: type[Section] | None = Experiment
    found: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue
        if model is None or part not in model.model_fields:
            return None
        found = model.model_fields[part]
        model = _section(found.annotation)
    return found


def _section(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section(part))), None)


def _below(path: FieldPath, above: FieldPath) -> bool:
    return path[: len(above)] == above


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """The value in builtin types alone: text of an environment variable becomes plain text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value
