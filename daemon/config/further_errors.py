"""Stand-ins for malformed fields, so that further errors of a file are found in the same attempt."""

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

_OMITTED: Final = object()
"""Stand-in for a field left out."""
_ALGORITHM: Final = "algorithm_type"
"""Field of the algorithm's name."""
_TEXTS: Final = ("/stand_in", "stand_in")
"""Stand-ins for texts."""
_NUMBERS: Final = (1, 2, 8, 64, 1024, 0.5)
"""Stand-ins for numbers."""
_ATTEMPTS: Final = 4
"""Maximum number of successive removals, each of sections left incomplete by the previous removal."""


def further_contradictions(tree: dict[str, Any], issues: Iterable[Issue], source: SourceMap, host: Host) -> list[Issue]:
    """Returns contradictions in the file that do not depend on the malformed fields already in `issues`.

    Each malformed field is replaced by several possible values, or left out. A contradiction found with only some of
    the values follows from a stand-in and is not reported.
    """
    malformed = {issue.path: issue for issue in issues}
    # Beyond the display limit the remaining issues are hidden, and `report` says so.
    if not malformed or () in malformed or len(malformed) > limits.CONFIG_ERRORS:
        return []
    valid_tree = _without(tree, malformed, source)
    if valid_tree is None:
        return []
    fields = [list(_candidates(tree, valid_tree, issue, source)) for issue in malformed.values()]
    common_issues: dict[tuple[FieldPath, str], Issue] | None = None
    for number in range(max(len(candidates) for candidates in fields)):
        variant = _copy(valid_tree)
        for candidates in fields:
            _put(variant, *candidates[number % len(candidates)])
        experiment, wrong = validate(variant, source)
        if experiment is None or wrong:
            continue
        _, contradictions = resolve_experiment(experiment, plain(experiment.model_dump(exclude_unset=True)), host=host)
        variant_issues = {(issue.path, issue.what): issue for issue in contradictions}
        common_issues = (
            variant_issues
            if common_issues is None
            else {key: issue for key, issue in common_issues.items() if key in variant_issues}
        )
    replaced_paths = [path for candidates in fields for path, _ in candidates] + list(malformed)
    beside = [
        issue
        for issue in (common_issues or {}).values()
        if not any(_below(issue.path, path) for path in replaced_paths)
    ]
    # A section without any similar name may be the missing section.
    if any(
        isinstance(_at(tree, path), dict) and _is_left_out(candidates)
        for path, candidates in zip(malformed, fields, strict=True)
    ):
        return [issue for issue in beside if _at(tree, issue.path) is not None]
    return beside


def _is_left_out(candidates: list[tuple[FieldPath, Any]]) -> bool:
    """True if the only stand-ins of a field leave it out."""
    return all(stand_in is _OMITTED for _, stand_in in candidates)


def _at(tree: dict[str, Any], path: FieldPath) -> Any:
    """Returns the node at a path; None if absent."""
    node: Any = tree
    for key in path:
        node = child(node, key)
    return node


def _without(tree: dict[str, Any], malformed: Iterable[FieldPath], source: SourceMap) -> dict[str, Any] | None:
    """Returns a valid tree without the malformed fields; None if no valid tree is found."""
    remainder: dict[str, Any] = _copy(tree)
    for path in malformed:
        _remove(remainder, path)
    for _ in range(_ATTEMPTS):
        experiment, wrong = validate(remainder, source)
        if experiment is not None:
            return remainder
        for issue in wrong:
            text = _field(issue.path)
            if text is not None and text.annotation is str and text.is_required():
                _put(remainder, issue.path, "stand_in")
            else:
                _remove(remainder, issue.path[:-1])
    return None


def _remove(tree: dict[str, Any], path: FieldPath) -> None:
    """Removes the field; for an element of a list, removes the list, because the other indices must not change."""
    while path:
        node = _at(tree, path[:-1])
        if isinstance(node, dict):
            node.pop(path[-1], None)
            return
        path = path[:-1]


def _put(tree: dict[str, Any], path: FieldPath, stand_in: Any) -> None:
    """Sets the field, unless the stand-in means "left out" or the section is not a mapping."""
    if stand_in is _OMITTED:
        return
    node: Any = tree
    for key in path[:-1]:
        if isinstance(node, dict) and node.get(key) is None:
            node[key] = {}
        node = child(node, key)
    if isinstance(node, dict):
        node[path[-1]] = stand_in


def _candidates(
    tree: dict[str, Any], valid_tree: dict[str, Any], issue: Issue, source: SourceMap
) -> Iterator[tuple[FieldPath, Any]]:
    """Yields at least one field with a value replacing a malformed field."""
    yielded = False
    for path, stand_in in _intended_fields(tree, issue):
        variant = _copy(valid_tree)
        _put(variant, path, stand_in)
        experiment, _ = validate(variant, source)
        if experiment is not None:
            yielded = True
            yield path, stand_in
    if not yielded:
        yield issue.path, _OMITTED


def _intended_fields(tree: dict[str, Any], issue: Issue) -> list[tuple[FieldPath, Any]]:
    """Returns the fields probably meant by a malformed one, with possible values."""
    path = issue.path
    malformed = _at(tree, path)
    if issue.kind is UnknownField:
        near = nearest_field(path)
        return [(near, malformed)] if near is not None and _at(tree, near) is None else []
    return [(path, stand_in) for stand_in in _stand_ins(path, malformed)]


def _stand_ins(path: FieldPath, malformed: Any) -> list[Any]:
    """Returns possible values of a malformed field."""
    field = _field(path)
    if path[-2:] == ("algorithm", _ALGORITHM):
        near = difflib.get_close_matches(str(malformed), registry.names(), 1)
        return near or [_OMITTED, "grpo", "sft"]
    if field is None:
        return []
    stand_ins: list[Any] = [_OMITTED]
    for kind in _kinds(field.annotation):
        if get_origin(kind) is Literal:
            words = [word for word in get_args(kind) if isinstance(word, str)]
            if near := difflib.get_close_matches(str(malformed), words, 1):
                return list(near)
            stand_ins += words
        elif kind is bool:
            stand_ins += [True, False]
        elif kind in (int, float):
            number = read_scalar(malformed.strip()) if isinstance(malformed, str) else None
            if isinstance(number, int | float) and not isinstance(number, bool):
                return [number]
            stand_ins += _NUMBERS
        elif kind is str:
            stand_ins += _TEXTS
    return stand_ins


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yields the scalar types accepted by an annotation."""
    if annotation in (int, float, str, bool) or get_origin(annotation) is Literal:
        yield annotation
    elif get_origin(annotation) not in (list, dict):
        for argument in get_args(annotation):
            yield from _kinds(argument)


def _field(path: FieldPath) -> FieldInfo | None:
    """Returns the schema's field at `path`; None if the schema has no field there."""
    model: type[Section] | None = Experiment
    field: FieldInfo | None = None
    for key in path:
        if isinstance(key, int):
            continue
        if model is None or key not in model.model_fields:
            return None
        field = model.model_fields[key]
        model = _section(field.annotation)
    return field


def _section(annotation: Any) -> type[Section] | None:
    """Returns the section class in an annotation; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((section for argument in get_args(annotation) if (section := _section(argument))), None)


def _below(path: FieldPath, above: FieldPath) -> bool:
    """True if a path is below another, or equal."""
    return path[: len(above)] == above


def _copy(node: Any) -> Any:
    """Returns a deep copy of plain data."""
    if isinstance(node, dict):
        return {key: _copy(element) for key, element in node.items()}
    return [_copy(element) for element in node] if isinstance(node, list) else node


def plain(node: Any) -> Any:
    """Converts values to builtin types; the text of an environment variable becomes plain text."""
    if isinstance(node, dict):
        return {str(key): plain(element) for key, element in node.items()}
    if isinstance(node, list):
        return [plain(element) for element in node]
    return str(node) if isinstance(node, str) else node
