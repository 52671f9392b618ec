"""An experiment by what a person types: its name, `name@2`, its id, or a unique beginning of its id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from rftd.ops.errors import NotFoundError, UsageError

_CANDIDATES = 8
_DIGITS = 9
"""Most digits of the number in `NAME@N`; with more of them it is part of a name."""


class Named(NamedTuple):
    """An experiment, as far as its name goes."""

    id: UUID
    name: str
    removed: bool
    """Its files are gone, and its name is free."""


def choose(known: Sequence[Named], wanted: str) -> UUID:
    """The experiment that `wanted` names; `known` are in order of submission, of equal names `NAME@N` is the N-th.

    A name is that of an experiment that was removed only if no other has it. This alone decides it: for the tables and
    for the log, with and without a daemon.

    Raises NotFoundError if there is none, UsageError with the candidates if there are several.
    """
    # `isdigit` is true of superscripts and other scripts' digits too, of which `int` refuses some: hence `isascii`.
    base, _, number = wanted.rpartition("@")
    if base and number.isascii() and number.isdigit() and len(number) <= _DIGITS:
        attempts = [each.id for each in known if each.name == base]
        if 0 < int(number) <= len(attempts):
            return attempts[int(number) - 1]
        # Else `@N` may be a part of the name itself.
    if named := [each for each in known if each.name == wanted]:
        left = [each for each in named if not each.removed] or named
        candidates = [f"{wanted}@{n} ({each.id})" for n, each in enumerate(named, start=1) if each in left]
        return _only(left, wanted, candidates)
    prefix = wanted.replace("-", "").lower()
    found = [each for each in known if prefix and each.id.hex.startswith(prefix)]
    if not found:
        near = ", ".join(each.name for each in known[-_CANDIDATES:])
        raise NotFoundError(f"no experiment {wanted!r}", fix=f"known: {near}" if near else "submit one first")
    return _only(found, wanted, [f"{each.id} ({each.name})" for each in found])


def _only(found: Sequence[Named], wanted: str, candidates: list[str]) -> UUID:
    if len(found) > 1:
        raise UsageError(
            f"{wanted!r} names {len(found)} experiments", fix="use one of " + ", ".join(candidates[-_CANDIDATES:])
        )
    return found[0].id
