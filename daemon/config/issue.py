"""Issues of an experiment file, the kinds of error that they become, and the notes that a resolver takes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rftd.daemon.config.field_path import FieldPath, parse, show
from rftd.daemon.config.source import SourceMap, SourcePlace
from rftd.ops import limits
from rftd.ops.errors import ConfigError, RftdError, UsageError

if TYPE_CHECKING:
    from rftd.streams.spec.spec import ExperimentSpec


class FieldError(ConfigError):
    """An issue at its place; `excerpt` is the line with a mark under it."""

    excerpt: str | None = None

    def __str__(self) -> str:
        text = super().__str__()
        if not self.excerpt:
            return text
        head, mark, tail = text.partition(f"\n  --> {self.where}")
        return f"{head}{mark}\n{self.excerpt}{tail}"


class SyntaxIssue(FieldError):
    """The file is not a YAML mapping, or has a duplicate key."""

    code = "RFTD-CFG-002"
    remedy = "Correct the YAML at that line; give each key once."


class LimitIssue(FieldError):
    """The file is larger or more deeply nested than the daemon accepts."""

    code = "RFTD-CFG-003"
    remedy = "Make the file smaller; data belongs in datasets."


class UnknownField(FieldError):
    """There is no field of this name."""

    code = "RFTD-CFG-004"
    remedy = "Correct the name; the message gives the nearest one, or the known ones."


class WrongValue(FieldError):
    """The value has the wrong type, or is not one of the allowed values."""

    code = "RFTD-CFG-005"
    remedy = "Use a value of the type that the message names, or one of the values that it lists."


class Interpolation(FieldError):
    """A `${...}` cannot be resolved."""

    code = "RFTD-CFG-006"
    remedy = "Export the variable, or give a default: `${oc.env:NAME,default}`."


class SecretIssue(FieldError):
    """The file contains a secret as a literal value, which must not leave the client."""

    code = "RFTD-CFG-007"
    remedy = "Export the value and write `{env: NAME}`."


class Contradiction(FieldError):
    """Two fields contradict each other, or one is missing."""

    code = "RFTD-CFG-008"
    remedy = "Change one of the two fields, or give the missing one."


class Unsupported(FieldError):
    """The file asks for something that rftd cannot do yet and must not ignore."""

    code = "RFTD-CFG-009"
    remedy = "Use what the message suggests, or remove the field."


class ConfigErrors(ConfigError):
    """Everything that is wrong with an experiment file, at once."""

    def __init__(self, errors: Sequence[UsageError]) -> None:
        count = len(errors)
        super().__init__(f"{count} error{'s' if count != 1 else ''} in the experiment file")
        self.errors: tuple[UsageError, ...] = tuple(errors)
        self.draft: ExperimentSpec | None = None
        """The specification with what is wrong in it, if each field by itself is right: more can be said about it."""

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


@dataclass(frozen=True, slots=True)
class Issue:
    """A field with what is wrong with it and what to do."""

    path: FieldPath
    what: str
    fix: str | None = None
    kind: type[FieldError] = WrongValue
    at_key: bool = False
    place: SourcePlace | None = None
    """The place that is shown, if not that of `path`."""

    def under(self, prefix: FieldPath) -> Issue:
        """A copy of the issue, for the field below `prefix`."""
        return replace(self, path=prefix + self.path)


@dataclass(slots=True)
class Notes:
    """Issues name fields as seen from the stage; warnings are sentences, each kept once."""

    issues: list[Issue] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def wrong(self, path: FieldPath, what: str, fix: str | None = None, kind: type[FieldError] = Contradiction) -> None:
        """Notes a field, or a pair of them, that cannot hold."""
        self.issues.append(Issue(path, what, fix, kind))

    def unknown(self, path: FieldPath, what: str, known: Iterable[str]) -> None:
        """Notes a name that nothing takes, with the nearest of the `known` ones."""
        known = list(known)
        near = difflib.get_close_matches(str(path[-1]), known, 1)
        fix = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}" if known else "leave it out"
        self.issues.append(Issue(path, what, fix, UnknownField, at_key=True))

    def warn(self, text: str) -> None:
        """Notes that something was changed or has no effect."""
        if text not in self.warnings:
            self.warnings.append(text)


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
        said = f"and {rest} more; others may be found once these are corrected"
        errors = [*errors[: limits.CONFIG_ERRORS], FieldError(said, where=source.origin or None)]
    return ConfigErrors(errors)


def say_where(error: RftdError, source: SourceMap) -> None:
    """Adds file, line and column to an error, or to each of several, that names a field which the file has.

    The field gets the name that the file has for it, and several come in the order of the file.
    """
    several: tuple[RftdError, ...] = getattr(error, "errors", ())
    places = [(each, _say_where(each, source)) for each in several or (error,)]
    if several:
        places.sort(key=lambda pair: (pair[1].line, pair[1].column) if pair[1] else (0, 0))
        error.errors = tuple(each for each, _ in places)  # type: ignore[attr-defined]


def _say_where(error: RftdError, source: SourceMap) -> SourcePlace | None:
    path = parse(error.field) if error.field else None
    if path and not source.has(path) and source.has(key := (*path[:-1], str(path[-1]))):
        path = key  # a key of digits, such as a token id
    if path and source.written(path) != path:
        error.field = show(source.written(path))
    # A default that is wrong stands nowhere in the file: the section around it is shown instead.
    while path and not source.has(path):
        path = path[:-1]
    place = source.locate(path, at_key=isinstance(error, UnknownField)) if path else None
    if place is not None:
        error.where = f"{place}, {error.where}" if error.where else str(place)
        if isinstance(error, FieldError):
            error.excerpt = source.excerpt(place)
    return place
