"""Arguments of parts, engines and strategies, completed by declared defaults."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.streams.spec.declaration import FieldEffect


def with_defaults(plugins: Plugins[Any], name: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all arguments of a built-in part in declaration order; for a third-party part, not imported here, only
    `arguments`.
    """
    if name is None or not plugins.builtin(name):
        return dict(arguments)
    try:
        declaration = plugins.declaration(name)
        factory = plugins.load(name)
    except ConfigError:  # the part's optional dependencies are not installed
        return dict(arguments)
    if declaration is None:
        return dict(arguments)
    completed: dict[str, Any] = {}
    for parameter in inspect.signature(factory).parameters.values():
        setting = arguments.get(parameter.name, parameter.default)
        if setting is not parameter.empty and (
            parameter.name in arguments or parameter.name not in declaration.ignored
        ):
            completed[parameter.name] = setting
    return _plain({**completed, **arguments})


def struct_defaults(kind: type[msgspec.Struct] | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an engine's or strategy's arguments completed by defaults; only `arguments` if `kind` is None."""
    if kind is None:
        return dict(arguments)
    completed: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in arguments:
            completed[field.name] = arguments[field.name]
        elif field.default is not msgspec.NODEFAULT:
            completed[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            completed[field.name] = field.default_factory()
    return _plain({**completed, **arguments})


def acting_fields(section: msgspec.Struct) -> dict[str, Any]:
    """Returns the effective fields of a declared section, under the section's names and in declaration order."""
    hints = get_type_hints(type(section), include_extras=True)
    idle = {name for name, hint in hints.items() if any(isinstance(mark, FieldEffect) for mark in get_args(hint))}
    return {name: setting for name, setting in _plain(msgspec.structs.asdict(section)).items() if name not in idle}


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments as plain data, tuples as lists."""
    plain: dict[str, Any] = msgspec.to_builtins(arguments)
    return {name: list(setting) if isinstance(setting, tuple) else setting for name, setting in plain.items()}
