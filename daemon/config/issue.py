"""Issues of an experiment file, the error classes made from issues, and the notes of a resolver."""

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
    """An error located at a field; `excerpt` is the source line with a mark under the field."""

    excerpt: str | None = None
    """Source line with a mark under the field; None without a position."""

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
    """The file contains a secret as a literal value; secrets must not leave the client."""

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
    """Raised with all errors of an experiment file together, in the order of the file; `errors` has them one by one."""

    def __init__(self, errors: Sequence[UsageError]) -> None:
        count = len(errors)
        super().__init__(f"{count} error{'s' if count != 1 else ''} in the experiment file")
        self.errors: tuple[UsageError, ...] = tuple(errors)
        self.draft: ExperimentSpec | None = None
        """Specification in spite of the errors, if every field by itself is valid, so that further checks are possible;
        else None.
        """

    def __str__(self) -> str:
        return "\n\n".join(str(error) for error in self.errors)


@dataclass(frozen=True, slots=True)
class Issue:
    """A problem of one field of an experiment file, with advice for the user."""

    path: FieldPath
    """Path of the field."""
    what: str
    """The problem, as a predicate of the field."""
    fix: str | None = None
    """Advice for the user."""
    kind: type[FieldError] = WrongValue
    """Class of the error."""
    at_key: bool = False
    """True to mark the field's key in the excerpt, rather than its value."""
    place: SourcePlace | None = None
    """Position shown in the error, if different from the position of `path`."""

    def under(self, prefix: FieldPath) -> Issue:
        """Returns a copy of the issue for the field below `prefix`."""
        return replace(self, path=prefix + self.path)


@dataclass(slots=True)
class Notes:
    """Issues and warnings collected while resolving a stage; paths are relative to the stage, each warning is stored
    once.
    """

    issues: list[Issue] = field(default_factory=list)
    """Issues found so far."""
    warnings: list[str] = field(default_factory=list)
    """Warnings found so far."""

    def wrong(
        self, path: FieldPath, problem: str, fix: str | None = None, kind: type[FieldError] = Contradiction
    ) -> None:
        """Adds the issue of an invalid field, or of a contradictory pair."""
        self.issues.append(Issue(path, problem, fix, kind))

    def unknown(self, path: FieldPath, problem: str, known_names: Iterable[str]) -> None:
        """Adds the issue of a name that is not among `known_names`, suggesting the nearest of them."""
        known_names = list(known_names)
        near = difflib.get_close_matches(str(path[-1]), known_names, 1)
        fix = (
            f"did you mean {near[0]!r}?"
            if near
            else f"known here: {', '.join(known_names)}"
            if known_names
            else "leave it out"
        )
        self.issues.append(Issue(path, problem, fix, UnknownField, at_key=True))

    def warn(self, text: str) -> None:
        """Adds a warning about a changed or ineffective setting, unless already present."""
        if text not in self.warnings:
            self.warnings.append(text)


def report(issues: Sequence[Issue], source: SourceMap | None = None) -> ConfigErrors:
    """Returns the error holding all issues in the order of the file, without duplicates."""
    source = source or SourceMap("")
    located = [(issue, issue.place or source.locate(issue.path, at_key=issue.at_key)) for issue in issues]
    # Issues without a position, such as an empty file, come first; the stable sort keeps the order within one position.
    located.sort(key=lambda pair: (pair[1].line, pair[1].column) if pair[1] else (0, 0))
    errors: list[FieldError] = []
    reported: set[tuple[str, str]] = set()
    for issue, position in located:
        field = show(source.written(issue.path))
        # Stages are resolved separately: an error of a global section is found once per stage.
        if (field, issue.what) in reported:
            continue
        reported.add((field, issue.what))
        where = str(position) if position else source.origin
        error = issue.kind(issue.what, where=where or None, field=field or None, fix=issue.fix)
        error.excerpt = source.excerpt(position) if position else None
        errors.append(error)
    if len(errors) > limits.CONFIG_ERRORS:
        omitted_count = len(errors) - limits.CONFIG_ERRORS
        omission = f"and {omitted_count} more; others may be found once these are corrected"
        errors = [*errors[: limits.CONFIG_ERRORS], FieldError(omission, where=source.origin or None)]
    return ConfigErrors(errors)


def say_where(error: RftdError, source: SourceMap) -> None:
    """Adds file, line and column to an error (or to each of several) about a field present in the file.

    The field is renamed to the file's own spelling, and several errors are sorted in the order of the file.
    """
    several: tuple[RftdError, ...] = getattr(error, "errors", ())
    located = [(single, _say_where(single, source)) for single in several or (error,)]
    if several:
        located.sort(key=lambda pair: (pair[1].line, pair[1].column) if pair[1] else (0, 0))
        error.errors = tuple(single for single, _ in located)  # type: ignore[attr-defined]


def _say_where(error: RftdError, source: SourceMap) -> SourcePlace | None:
    """Adds position, excerpt, and the field's name as written to one error; returns the position, None without one."""
    path = parse(error.field) if error.field else None
    if path and not source.has(path) and source.has(key := (*path[:-1], str(path[-1]))):
        path = key  # a key of digits, such as a token id
    if path and source.written(path) != path:
        error.field = show(source.written(path))
    # An invalid default has no position in the file: the section around the field is shown instead.
    while path and not source.has(path):
        path = path[:-1]
    position = source.locate(path, at_key=isinstance(error, UnknownField)) if path else None
    if position is not None:
        error.where = f"{position}, {error.where}" if error.where else str(position)
        if isinstance(error, FieldError):
            error.excerpt = source.excerpt(position)
    return position
