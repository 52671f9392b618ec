"""`report` makes an error of issues that shows file, line, column, the line itself and a fix for each."""

from __future__ import annotations

from collections.abc import Sequence

from rftd.daemon.config.field_path import parse, show
from rftd.daemon.config.issue import ConfigErrors, FieldError, Issue
from rftd.daemon.config.source import SourceMap
from rftd.ops import limits
from rftd.ops.errors import RftdError


def report(issues: Sequence[Issue], source: SourceMap | None = None) -> ConfigErrors:
    """The error that holds all issues, in the order of the file, each once."""
    source = source or SourceMap("")
    located = [(issue, issue.place or source.locate(issue.path, at_key=issue.at_key)) for issue in issues]
    # What has no place, such as an empty file, comes first; the sort is stable, so issues of one place stay in
    # order.
    located.sort(key=lambda pair: (pair[1].line, pair[1].column) if pair[1] else (0, 0))
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for issue, place in located:
        field = show(source.written(issue.path))
        # Stages are resolved one by one: what is wrong in a global section is found once for each of them.
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
        # A default that is wrong stands nowhere in the file: the section around it is shown instead.
        while path and not source.has(path):
            path = path[:-1]
        place = source.locate(path) if path else None
        if place is not None:
            each.where = f"{place}, {each.where}" if each.where else str(place)
