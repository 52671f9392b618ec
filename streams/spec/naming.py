"""Look-up of experiments by what a person types: a name, `name@2`, an id, or the unique beginning of an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from rftd.ops.errors import NotFoundError, UsageError

_CANDIDATES = 8
"""Number of experiments named in an error."""
_DIGITS = 9
"""Maximum number of digits of N in `NAME@N`; with more, the text counts as a name."""


class Named(NamedTuple):
    """Id and name of an experiment, and whether it was removed."""

    id: UUID
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    removed: bool
    """True if its files are deleted, so that its name is free."""


def choose(experiments: Sequence[Named], text: str) -> UUID:
    """Returns the id of the experiment meant by `text`; `experiments` are in order of submission.

    `NAME@N` is the N-th of equal names. A name means a removed experiment only if no other has it. This function alone
    decides: for the tables and for the log, with and without a daemon. Raises NotFoundError if there is none,
    UsageError with the candidates if there are several.
    """
    # `isdigit` is true for superscripts and other scripts' digits too, and `int` refuses several of them: hence
    # `isascii`.
    base, _, number = text.rpartition("@")
    if base and number.isascii() and number.isdigit() and len(number) <= _DIGITS:
        attempts = [experiment.id for experiment in experiments if experiment.name == base]
        if 0 < int(number) <= len(attempts):
            return attempts[int(number) - 1]
        # Else `@N` may be a part of the name itself.
    if named := [experiment for experiment in experiments if experiment.name == text]:
        remaining = [experiment for experiment in named if not experiment.removed] or named
        candidates = [
            f"{text}@{n} ({experiment.id})" for n, experiment in enumerate(named, start=1) if experiment in remaining
        ]
        return _only(remaining, text, candidates)
    prefix = text.replace("-", "").lower()
    matches = [experiment for experiment in experiments if prefix and experiment.id.hex.startswith(prefix)]
    if not matches:
        near = ", ".join(experiment.name for experiment in experiments[-_CANDIDATES:])
        raise NotFoundError(f"no experiment {text!r}", fix=f"known: {near}" if near else "submit one first")
    return _only(matches, text, [f"{experiment.id} ({experiment.name})" for experiment in matches])


def _only(matches: Sequence[Named], text: str, candidates: list[str]) -> UUID:
    """Returns the id of the single match; raises UsageError, with the candidates, if there are several."""
    if len(matches) > 1:
        raise UsageError(
            f"{text!r} names {len(matches)} experiments", fix="use one of " + ", ".join(candidates[-_CANDIDATES:])
        )
    return matches[0].id
