"""Arguments with the defaults of what takes them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins
from rftd.streams.spec.declaration import FieldEffect


def with_defaults(plugins: Plugins[Any], name: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of one of ours, in the order of its declaration; of a third party's, which is not imported, those
    that are given."""
    if name is None or not plugins.builtin(name):
        return dict(given)
    try:
        declaration = plugins.declaration(name)
        factory = plugins.load(name)
    except ConfigError:  # without its extra
        return dict(given)
    if declaration is None:
        return dict(given)
    known: dict[str, Any] = {}
    for parameter in inspect.signature(factory).parameters.values():
        value = given.get(parameter.name, parameter.default)
        if value is not parameter.empty and (parameter.name in given or parameter.name not in declaration.ignored):
            known[parameter.name] = value
    return _plain({**known, **given})


def struct_defaults(kind: type[msgspec.Struct] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of an engine or strategy; those that are given where nobody here knows what it takes."""
    if kind is None:
        return dict(given)
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in given:
            known[field.name] = given[field.name]
        elif field.default is not msgspec.NODEFAULT:
            known[field.name] = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            known[field.name] = field.default_factory()
    return _plain({**known, **given})


def acting_fields(section: msgspec.Struct) -> dict[str, Any]:
    """The fields of a declared section that act, in its own names and order."""
    hints = get_type_hints(type(section), include_extras=True)
    idle = {name for name, hint in hints.items() if any(isinstance(mark, FieldEffect) for mark in get_args(hint))}
    fields = {name: value for name, value in _plain(msgspec.structs.asdict(section)).items() if name not in idle}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(arguments)
    return plain
