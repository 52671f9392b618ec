"""Checks of arguments that the schema leaves open, against what takes them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from rftd.daemon.config.field_path import FieldPath, parse, show
from rftd.daemon.config.issue import Issue, Notes, UnknownField, Unsupported, WrongValue
from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins


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
            # One at a time, so that every wrong one is named: msgspec stops at the first.
            converted({name: value}, kind)
        except msgspec.ValidationError as error:
            # msgspec's place in the struct says nothing to a user: the issue has the field's own path.
            reason = str(error).partition(" - at ")[0]
            reason = reason[:1].lower() + reason[1:]
            what = f"is {value!r}, which {taker} does not take: {reason}"
            notes.wrong((*path, name), what, _advice(kind, name, value) or _default(kind, name), WrongValue)


def refused_value(kind: type[msgspec.Struct], name: str, value: object) -> str | None:
    """The advice for a value that the field of `kind` does not take; None if it takes it."""
    try:
        converted({name: value}, kind)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0]
        return _advice(kind, name, value) or f"{reason[:1].lower()}{reason[1:]}; {_default(kind, name)}"
    return None


def _advice(kind: type[msgspec.Struct], name: str, value: object) -> str | None:
    """The words that the field takes, the nearest first; None where it takes more than a few words."""
    words = list(_words(get_type_hints(kind)[name]))
    near = difflib.get_close_matches(str(value), words, 1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"one of {', '.join(words)}" if words else None


def _default(kind: type[msgspec.Struct], name: str) -> str | None:
    field = next(each for each in msgspec.structs.fields(kind) if each.name == name)
    return None if field.default is msgspec.NODEFAULT else f"leave it out for its default, {field.default!r}"


def _words(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for part in get_args(annotation):
            yield from _words(part)


def check_engine(plugins: Plugins[Any], name: str, guides: Iterable[str], path: FieldPath, notes: Notes) -> None:
    """Refuses an engine that nobody registered; `guides` are those that the guide has, whether they are here or not."""
    try:
        plugins.check(name)
    except ConfigError as error:
        if name in guides and not plugins.builtin(name):
            notes.wrong(path, f"{name} cannot be run yet", "write torch", Unsupported)
        else:
            notes.wrong(path, error.what, error.fix, WrongValue)


def check_declared(
    plugins: Plugins[Any],
    name: str | None,
    given: Mapping[str, Any],
    path: FieldPath,
    notes: Notes,
    *,
    beside: Iterable[str] = (),
    noun: str = "",
) -> None:
    """Refuses names, types and values that one of ours does not take, and required arguments that are missing.

    `beside` are names that the file may write there and that were taken out before; `noun` says in what part it is
    used, where that is not the kind of the plug-ins. A third party's module is not imported here: the daemon does that
    before it accepts.
    """
    if name is None or not plugins.builtin(name):
        return
    try:
        declaration = plugins.declaration(name)
    except ConfigError:  # without its extra, which is said elsewhere
        return
    taker = f"{noun or plugins.kind} {name}"
    if declaration is None:
        _check_idle(plugins, given, path, taker, notes)
        return
    known = (*declaration.kind.__struct_fields__, *beside)
    for argument, value in given.items():
        takers = [] if argument in known else [each for each in plugins.ours() if _takes(plugins, each, argument)]
        if takers:
            what = f"is {value!r}, and {taker} takes no argument {argument!r}"
            elsewhere = f"leave it out: it is an argument of {', '.join(takers)}"
            notes.issues.append(Issue((*path, argument), what, elsewhere, UnknownField, at_key=True))
        else:
            check_names({argument: value}, known, path, taker, notes)
    for argument, why in declaration.wrong(given):
        missing = argument in declaration.required and argument not in given
        advice = f"{taker} needs it" if missing else _advice(declaration.kind, argument, given.get(argument))
        own = f"correct it, or leave it out for the {plugins.kind}'s own"
        notes.wrong((*path, argument), why, advice or own, WrongValue)
    for argument in declaration.ignored:
        if argument in given:
            notes.warn(f"{show((*path, argument))} has no effect: {taker} takes it and does not need it")


def _takes(plugins: Plugins[Any], name: str, argument: str) -> bool:
    try:
        return argument in (plugins.arguments(name) or ())
    except ConfigError:  # without its extra
        return False


def _check_idle(plugins: Plugins[Any], given: Mapping[str, Any], path: FieldPath, taker: str, notes: Notes) -> None:
    """Holds arguments of one that takes any and heeds none, such as `none`, against those of its kind."""
    known = sorted({each for other in plugins.ours() for each in plugins.arguments(other) or ()})
    check_names(given, known, path, taker, notes)
    for argument in given:
        if argument in known:
            notes.warn(f"{show((*path, argument))} has no effect with {taker}")


def refuse_made(error: ConfigError, path: FieldPath, given: Mapping[str, Any], notes: Notes) -> None:
    """Notes what a constructor refused, at the argument that its error names, else at all of them."""
    name = str((parse(error.field or "") or ("",))[-1])
    where = (*path, name) if name in given else path
    notes.wrong(where, error.what.removeprefix(f"{name} ") if name in given else error.what, error.fix, WrongValue)


def lifted_counts(
    args: dict[str, Any], names: tuple[str, ...], path: FieldPath, notes: Notes
) -> tuple[dict[str, Any], dict[str, int]]:
    """Counts that the specification has a field for, taken out of the engine's own arguments."""
    rest = dict(args)
    lifted = {}
    for name in names:
        if name not in rest:
            continue
        value = rest.pop(name)
        # In Python a bool is an int: `threads: true` would be one thread.
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
            notes.wrong((*path, name), "must be a whole number between 1 and 4096")
        else:
            lifted[name] = value
    return rest, lifted
