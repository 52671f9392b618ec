"""The table of event types: name, version, stream, whose they are, and how older versions become the current one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from rftd.ops.decoding import converted, msgpack_decoder
from rftd.ops.errors import CodecError

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

CONTROLLER: Final = "controller"
PLANNER: Final = "planner"
DISPATCHER: Final = "dispatcher"
TRAINER: Final = "trainer"
NOBODY: Final = ""
"""The owner of what is written without a lease: by explorers, by workers about themselves, by whoever sees one die."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every payload. Fields with a default may be added; a changed meaning is a new version."""


C = TypeVar("C", bound=type[Event])


class UnknownVersionError(CodecError):
    """The record was written by a newer release of rftd; upgrade readers first."""

    code = "RFTD-LOG-007"


class Definition:
    """One event type at its current version, with the upcasters of the older ones."""

    def __init__(
        self, kind: type[Event], name: str, version: int, stream: str, owner: str, commanded: bool, anywhere: bool
    ) -> None:
        self.kind = kind
        self.name = name
        self.version = version
        self.stream = stream
        self.owner = owner
        self.commanded = commanded
        self.anywhere = anywhere
        self.upcasts: dict[int, Upcast] = {}
        self.decode: Callable[[bytes], Event] = msgpack_decoder(kind).decode


class _Older:
    """Decodes an older version: to a dict, through each upcaster, then typed."""

    def __init__(self, definition: Definition, version: int) -> None:
        self._definition = definition
        self._version = version

    def decode(self, value: bytes) -> Event:
        # As plain values until the last step: what is in between fits no class of this release.
        fields: dict[str, Any] = msgpack_decoder(dict[str, Any]).decode(value)
        for version in range(self._version, self._definition.version):
            fields = self._definition.upcasts[version](fields)
        return converted(fields, self._definition.kind)


_by_name: dict[str, Definition] = {}
_by_kind: dict[type[Event], Definition] = {}


def event(
    name: str, *, stream: str, owner: str, commanded: bool = False, version: int = 1, anywhere: bool = False
) -> Callable[[C], C]:
    """Registers a payload class as the current version of event type `name` on `stream`.

    `owner` is the one role whose records of this type have an effect (rule 2); see `rftd.streams.fencing`. What is
    `commanded` is also appended without a lease, by a command while no run of the experiment is under way. `anywhere`
    marks the one type (fence) that is written to every stream its role writes.
    """

    def register(kind: C) -> C:
        # At import: two types of one name would make what is decoded depend on the order of imports.
        assert name not in _by_name, name
        assert not commanded or owner, name
        definition = Definition(kind, name, version, stream, owner, commanded, anywhere)
        _by_name[name] = _by_kind[kind] = definition
        return kind

    return register


def upcast(kind: type[Event], from_version: int) -> Callable[[Upcast], Upcast]:
    """Registers the pure function that turns the fields of `from_version` into those of the next."""

    def register(function: Upcast) -> Upcast:
        _by_kind[kind].upcasts[from_version] = function
        return function

    return register


def definition_of(kind: type[Event]) -> Definition:
    """The definition of a payload class."""
    return _by_kind[kind]


def definition_named(name: str) -> Definition:
    """The definition of a type, whatever the version. Raises CodecError if there is none."""
    definition = _by_name.get(name)
    if definition is None:
        raise CodecError(f"no event type {name!r}", fix="it was written by another program or a newer release")
    return definition


def definitions() -> list[Definition]:
    """Every registered type, by name."""
    return [_by_name[name] for name in sorted(_by_name)]


def resolve(name: str, version: int) -> Definition | _Older:
    """The decoder of a (type, version). Raises CodecError if there is none."""
    definition = definition_named(name)
    if version == definition.version:
        return definition
    # Never an older decoder for a newer record: fields that it does not know may say that the event means less.
    if version > definition.version:
        raise UnknownVersionError(
            f"{name} v{version} is newer than v{definition.version}, the newest known here",
            fix="upgrade this process before the writers",
        )
    if any(step not in definition.upcasts for step in range(version, definition.version)):
        raise CodecError(f"no upcaster from {name} v{version} to v{definition.version}")
    return _Older(definition, version)
