"""The declaration of an event type: name, version, stream, owner, and upcasters from older versions to the current one.

`catalogue` finds declared types by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from rftd.ops.decoding import msgpack_decoder

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""Function converting the fields of one version of an event to those of the next version."""

CONTROLLER: Final = "controller"
"""Role deciding about an experiment's life."""
PLANNER: Final = "planner"
"""Role that plans batches, retires experiences and abandons batches."""
DISPATCHER: Final = "dispatcher"
"""Role that leases tasks and evaluations, and closes groups."""
TRAINER: Final = "trainer"
"""Role that trains batches, publishes weights and saves checkpoints."""
NOBODY: Final = ""
"""Owner of records that need no lease: by explorers, by workers about themselves, by any witness of a worker's end."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every payload. Fields with a default may be added; a changed meaning is a new version."""


C = TypeVar("C", bound=type[Event])
"""Type of a payload class."""


class Definition:
    """One event type at its current version, with the upcasters of the older ones."""

    def __init__(
        self, kind: type[Event], name: str, version: int, stream: str, owner: str, commanded: bool, anywhere: bool
    ) -> None:
        """`owner` is the role with the lease for such records; `commanded`: written on a request; `anywhere`: allowed
        on any partition.
        """
        self.kind = kind
        self.name = name
        self.version = version
        self.stream = stream
        self.owner = owner
        self.commanded = commanded
        self.anywhere = anywhere
        self.upcasts: dict[int, Upcast] = {}
        """Function converting the fields of each older version to the next."""
        self.decode: Callable[[bytes], Event] = msgpack_decoder(kind).decode
        """Decoder of the current version."""


_by_name: dict[str, Definition] = {}
"""Definitions by type name."""
_by_kind: dict[type[Event], Definition] = {}
"""Definitions by payload class."""


def event(
    name: str, *, stream: str, owner: str, commanded: bool = False, version: int = 1, anywhere: bool = False
) -> Callable[[C], C]:
    """Registers a payload class as the current version of event type `name` on `stream`.

    `owner` is the only role with effective records of this type; see `rftd.streams.log.fencing`. A `commanded`
    type is also appended without a lease, by a command while no run of the experiment is under way. `anywhere` marks
    the one type (fence) written to every stream of its role.
    """

    def register(kind: C) -> C:
        # At import: with two types of one name, decoding would depend on the order of imports.
        assert name not in _by_name, name
        assert not commanded or owner, name
        definition = Definition(kind, name, version, stream, owner, commanded, anywhere)
        _by_name[name] = _by_kind[kind] = definition
        return kind

    return register


def upcast(kind: type[Event], from_version: int) -> Callable[[Upcast], Upcast]:
    """Registers a pure function converting the fields of version `from_version` to the next version's."""

    def register(function: Upcast) -> Upcast:
        _by_kind[kind].upcasts[from_version] = function
        return function

    return register


def definition_of(kind: type[Event]) -> Definition:
    """Returns the definition of a payload class. Raises KeyError for an unregistered class."""
    return _by_kind[kind]


def registered() -> Mapping[str, Definition]:
    """Returns the event types by name, of the modules imported until now; `catalogue` imports all of them."""
    return _by_name
