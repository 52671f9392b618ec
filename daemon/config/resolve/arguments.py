"""Checks of arguments left open by the schema, against the declarations of their receivers."""

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


def check_names(
    arguments: Mapping[str, Any], known_names: Iterable[str], path: FieldPath, receiver: str, notes: Notes
) -> None:
    """Adds an issue, with the nearest known name, for each argument that `receiver` does not have."""
    known_names = list(known_names)
    for name, setting in arguments.items():
        if name not in known_names:
            notes.unknown((*path, name), f"is {setting!r}, and {receiver} takes no argument {name!r}", known_names)


def check_struct(
    arguments: Mapping[str, Any],
    kind: type[msgspec.Struct],
    path: FieldPath,
    receiver: str,
    notes: Notes,
    *,
    extra_names: Iterable[str] = (),
) -> None:
    """Adds an issue for each argument that is no field of `kind`, or has a value its field does not accept.

    `extra_names` are further names allowed in the file, already removed from `arguments`.
    """
    check_names(arguments, (*kind.__struct_fields__, *extra_names), path, receiver, notes)
    for name, setting in arguments.items():
        if name not in kind.__struct_fields__:
            continue
        try:
            # Converted one at a time to report every wrong value: msgspec stops at the first.
            converted({name: setting}, kind)
        except msgspec.ValidationError as error:
            # msgspec's path within the struct means nothing to users: the issue has the field's own path.
            reason = str(error).partition(" - at ")[0]
            reason = reason[:1].lower() + reason[1:]
            problem = f"is {setting!r}, which {receiver} does not accept: {reason}"
            notes.wrong((*path, name), problem, _advice(kind, name, setting) or _default(kind, name), WrongValue)


def refused_value(kind: type[msgspec.Struct], name: str, setting: object) -> str | None:
    """Returns advice for a value that field `name` of `kind` does not accept; None for an accepted one."""
    try:
        converted({name: setting}, kind)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0]
        return _advice(kind, name, setting) or f"{reason[:1].lower()}{reason[1:]}; {_default(kind, name)}"
    return None


def _advice(kind: type[msgspec.Struct], name: str, setting: object) -> str | None:
    """Returns the allowed words of the field, the nearest first; None for a field without a list of words."""
    words = list(_words(get_type_hints(kind)[name]))
    near = difflib.get_close_matches(str(setting), words, 1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"one of {', '.join(words)}" if words else None


def _default(kind: type[msgspec.Struct], name: str) -> str | None:
    """Returns advice naming the field's default; None for a field without one."""
    field = next(struct_field for struct_field in msgspec.structs.fields(kind) if struct_field.name == name)
    return None if field.default is msgspec.NODEFAULT else f"leave it out for its default, {field.default!r}"


def _words(annotation: Any) -> Iterator[str]:
    """Yields the words accepted by a field's type."""
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for argument in get_args(annotation):
            yield from _words(argument)


def check_engine(plugins: Plugins[Any], name: str, guide_engines: Iterable[str], path: FieldPath, notes: Notes) -> None:
    """Adds an issue for an unregistered engine; `guide_engines` are the engines named in the guide, available here or
    not.
    """
    try:
        plugins.check(name)
    except ConfigError as error:
        if name in guide_engines and not plugins.builtin(name):
            notes.wrong(path, f"{name} cannot be run yet", "write torch", Unsupported)
        else:
            notes.wrong(path, error.what, error.fix, WrongValue)


def check_declared(
    plugins: Plugins[Any],
    name: str | None,
    arguments: Mapping[str, Any],
    path: FieldPath,
    notes: Notes,
    *,
    extra_names: Iterable[str] = (),
    noun: str = "",
) -> None:
    """Adds an issue for each name, type or value that a built-in plug-in does not accept, and for each missing
    argument.

    `extra_names` are further names allowed in the file, already removed from `arguments`; `noun` names the part's use,
    if different from the plug-ins' kind. A third-party module is not imported here, but by the daemon before
    acceptance.
    """
    if name is None or not plugins.builtin(name):
        return
    try:
        declaration = plugins.declaration(name)
    except ConfigError:  # without the optional dependencies, reported elsewhere
        return
    receiver = f"{noun or plugins.kind} {name}"
    if declaration is None:
        _check_idle(plugins, arguments, path, receiver, notes)
        return
    known_names = (*declaration.kind.__struct_fields__, *extra_names)
    for argument, setting in arguments.items():
        owners = (
            [] if argument in known_names else [owner for owner in plugins.ours() if _takes(plugins, owner, argument)]
        )
        if owners:
            problem = f"is {setting!r}, and {receiver} takes no argument {argument!r}"
            elsewhere = f"leave it out: it is an argument of {', '.join(owners)}"
            notes.issues.append(Issue((*path, argument), problem, elsewhere, UnknownField, at_key=True))
        else:
            check_names({argument: setting}, known_names, path, receiver, notes)
    for argument, why in declaration.wrong(arguments):
        missing = argument in declaration.required and argument not in arguments
        advice = f"{receiver} needs it" if missing else _advice(declaration.kind, argument, arguments.get(argument))
        default_advice = f"correct it, or leave it out for the {plugins.kind}'s default"
        notes.wrong((*path, argument), why, advice or default_advice, WrongValue)
    for argument in declaration.ignored:
        if argument in arguments:
            notes.warn(f"{show((*path, argument))} has no effect: {receiver} accepts it and ignores it")


def _takes(plugins: Plugins[Any], name: str, argument: str) -> bool:
    """True if a plug-in has an argument of this name."""
    try:
        return argument in (plugins.arguments(name) or ())
    except ConfigError:  # without the optional dependencies
        return False


def _check_idle(
    plugins: Plugins[Any], arguments: Mapping[str, Any], path: FieldPath, receiver: str, notes: Notes
) -> None:
    """Checks the arguments of a receiver ignoring all arguments, such as `none`, against the names used by its kind."""
    known_names = sorted(
        {argument_name for plugin_name in plugins.ours() for argument_name in plugins.arguments(plugin_name) or ()}
    )
    check_names(arguments, known_names, path, receiver, notes)
    for argument in arguments:
        if argument in known_names:
            notes.warn(f"{show((*path, argument))} has no effect with {receiver}")


def refuse_made(error: ConfigError, path: FieldPath, arguments: Mapping[str, Any], notes: Notes) -> None:
    """Adds the issue of an error raised by a plug-in's constructor, at the argument it names, or at all arguments."""
    name = str((parse(error.field or "") or ("",))[-1])
    where = (*path, name) if name in arguments else path
    notes.wrong(where, error.what.removeprefix(f"{name} ") if name in arguments else error.what, error.fix, WrongValue)


def lifted_counts(
    args: dict[str, Any], names: tuple[str, ...], path: FieldPath, notes: Notes
) -> tuple[dict[str, Any], dict[str, int]]:
    """Splits an engine's arguments into those it keeps and the counts (`names`) with fields of their own in the
    specification.
    """
    remaining = dict(args)
    lifted = {}
    for name in names:
        if name not in remaining:
            continue
        count = remaining.pop(name)
        # In Python a bool is an int: `threads: true` would be one thread.
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 4096:
            notes.wrong((*path, name), "must be a whole number between 1 and 4096")
        else:
            lifted[name] = count
    return remaining, lifted
