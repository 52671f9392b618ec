"""Issues to an error that shows file, line, column, the line itself and a fix."""

from __future__ import annotations

from collections.abc import Sequence

from rftd.daemon.config.field_path import parse, show
from rftd.daemon.config.issue import ConfigErrors, FieldError, Issue
from rftd.daemon.config.source import SourceMap
from rftd.ops import limits
from rftd.ops.errors import RftdError


def report(issues: Sequence[Issue], source: SourceMap | None = None) -> ConfigErrors:
    """One error that holds them all, in the order of the file."""
    source = source or SourceMap("")
    located = [(issue, issue.place or source.locate(issue.path, at_key=issue.at_key)) for issue in issues]
    located.sort(key=lambda pair: (pair[1].line, pair[1].column) if pair[1] else (0, 0))
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for issue, place in located:
        field = show(source.written(issue.path))
        if (field, issue.what) in seen:
            continue
        seen.add((field, issue.what))
        where = str(place) if place else source.origin
        error = issue.kind(issue.what, where=where or None, field=field or None, fix=issue.fix)
        error.excerpt = source.excerpt(place) if place else None
        errors.append(error)
    if len(errors) > limits.CONFIG_ERRORS:
        rest = len(errors) - limits.CONFIG_ERRORS
        errors = [*errors[: limits.CONFIG_ERRORS], FieldError(f"and {rest} more", where=source.origin or None)]
    return ConfigErrors(errors)


def say_where(error: RftdError, source: SourceMap) -> None:
    """Adds file, line and column to an error, or to each of several, that names a field which the file has."""
    for each in getattr(error, "errors", None) or (error,):
        path = parse(each.field) if each.field else None
        if path and not source.has(path):
            path = (*path[:-1], str(path[-1]))  # a key of digits, such as a token id
        while path and not source.has(path):
            path = path[:-1]
        place = source.locate(path) if path else None
        if place is not None:
            each.where = f"{place}, {each.where}" if each.where else str(place)
