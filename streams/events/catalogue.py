"""Every event type by its name, and the decoder of each version. Imports all modules of types, as a reader of a log
needs them.
"""

from __future__ import annotations

from typing import Any, Final

from rftd.ops.decoding import converted, msgpack_decoder
from rftd.ops.errors import CodecError
from rftd.streams.events import (
    batch,
    checkpoint,
    experience,
    experiment,
    step,
    sweep,
    task,
    weights,
    worker,
)
from rftd.streams.events.registry import Definition, Event, registered

CHAPTERS: Final = (
    experiment,
    task,
    experience,
    batch,
    step,
    weights,
    checkpoint,
    worker,
    sweep,
)
"""The modules of types. Each declares its types on import; a new module is a line here."""


class UnknownVersionError(CodecError):
    """The record was written by a newer release of rftd; upgrade readers first."""

    code = "RFTD-LOG-007"
    """Code of the error."""
    remedy = "Upgrade this process."
    """Fix of the error."""


class _OldVersionDecoder:
    """Decoder of an older version of an event: to a dict, through each upcaster, then typed."""

    def __init__(self, definition: Definition, version: int) -> None:
        """Decodes `version`, older than that of `definition`."""
        self._definition = definition
        self._version = version

    def decode(self, value: bytes) -> Event:
        # As plain values until the last step: the versions in between fit no class of this release.
        """Returns the event, converted to the current version. Raises msgspec.MsgspecError."""
        fields: dict[str, Any] = msgpack_decoder(dict[str, Any]).decode(value)
        for version in range(self._version, self._definition.version):
            fields = self._definition.upcasts[version](fields)
        return converted(fields, self._definition.kind)


def definition_named(name: str) -> Definition:
    """Returns the definition of the type, for any version. Raises CodecError for an unknown type."""
    definition = registered().get(name)
    if definition is None:
        raise CodecError(f"no event type {name!r}", fix="it was written by another program or a newer release")
    return definition


def definitions() -> list[Definition]:
    """Returns the definition of every type, sorted by name."""
    return [definition for _, definition in sorted(registered().items())]


def resolve(name: str, version: int) -> Definition | _OldVersionDecoder:
    """Returns the decoder of this version of a type. Raises CodecError for an unknown type or version."""
    definition = definition_named(name)
    if version == definition.version:
        return definition
    # Never an older decoder for a newer record: unknown fields may restrict the event's meaning.
    if version > definition.version:
        raise UnknownVersionError(
            f"{name} v{version} is newer than v{definition.version}, the newest known here",
            fix="upgrade this process before the writers",
        )
    if any(step not in definition.upcasts for step in range(version, definition.version)):
        raise CodecError(f"no upcaster from {name} v{version} to v{definition.version}")
    return _OldVersionDecoder(definition, version)
