"""Mappings of arguments that the schema leaves open, against what takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import WrongValue
from rftd.daemon.config.resolve.notes import Notes
from rftd.ops.decoding import converted


def check_names(given: Mapping[str, Any], known: Iterable[str], path: FieldPath, taker: str, notes: Notes) -> None:
    """Refuses each name that `taker` does not take."""
    known = list(known)
    for name, value in given.items():
        if name not in known:
            notes.unknown((*path, name), f"is {value!r}, and {taker} takes no argument {name!r}", known)


def check_struct(
    given: Mapping[str, Any],
    kind: type[msgspec.Struct],
    path: FieldPath,
    taker: str,
    notes: Notes,
    *,
    beside: Iterable[str] = (),
) -> None:
    """Refuses each name that is no field of `kind`, and each value that its field does not take.

    `beside` are names that the file may write there and that were taken out before.
    """
    check_names(given, (*kind.__struct_fields__, *beside), path, taker, notes)
    for name, value in given.items():
        if name not in kind.__struct_fields__:
            continue
        try:
            converted({name: value}, kind)
        except msgspec.ValidationError as error:
            reason = str(error).partition(" - at ")[0]
            reason = reason[:1].lower() + reason[1:]
            what = f"is {value!r}, which {taker} does not take: {reason}"
            notes.wrong((*path, name), what, _words(kind, name), WrongValue)


def _words(kind: type[msgspec.Struct], name: str) -> str | None:
    """All that the field takes, where that is one of a few words."""
    annotation = get_type_hints(kind)[name]
    return f"one of {', '.join(map(str, get_args(annotation)))}" if get_origin(annotation) is Literal else None
