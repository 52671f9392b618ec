"""Events to bytes and back: MessagePack, typed by (type, version), with limits checked before decoding."""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import UUID

import msgspec

from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.decoding import UNREADABLE, msgpack_decoder
from rftd.ops.errors import CodecError
from rftd.ops.ids import Ids
from rftd.ops.tracing.tracer import current
from rftd.streams.events.catalogue import resolve
from rftd.streams.events.registry import Event, definition_of
from rftd.streams.log.arrays import DTYPES
from rftd.streams.log.envelope import Decoded, Draft, Head, Record
from rftd.streams.log.topics import Partition, partition_of

E = TypeVar("E", bound=Event)
"""Type of the expected event."""

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
"""Encoder of attributes and payloads, with ids as 16 bytes."""
_head_decoder = msgpack_decoder(Head)
"""Decoder of a record's attributes."""
_UNREADABLE = (*UNREADABLE, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""Errors of decoding an event from bytes of any program."""
# All but the first come from an upcaster reading the fields of another program.


class Writer:
    """Encodes events as drafts, stamped with source, time, role and epoch of one writing process."""

    def __init__(self, *, source: str, clock: Clock, ids: Ids, role: str = "", epoch: int = 0) -> None:
        self.source = source
        self.role = role
        self.epoch = epoch
        self._clock = clock
        self._ids = ids

    def under(self, *, role: str, epoch: int) -> Writer:
        """Returns a writer of this source under a role and the epoch acquired by its fence."""
        return Writer(source=self.source, clock=self._clock, ids=self._ids, role=role, epoch=epoch)

    def draft(
        self,
        event: Event,
        *,
        experiment: UUID | None,
        key: UUID | None = None,
        partition: Partition | None = None,
        id: UUID | None = None,
        causation: UUID | None = None,
        correlation: UUID | None = None,
        traceparent: str | None = None,
    ) -> Draft:
        """Encodes an event as a draft for the partition of `key` (default: the experiment) or for `partition`.

        `traceparent` defaults to the open span's, if there is one. Raises CodecError for an event over
        `limits.RECORD_SIZE_BYTES`.
        """
        definition = definition_of(type(event))
        if partition is None:
            routing = key or experiment
            assert routing is not None, f"{definition.name} needs a key"
            partition = partition_of(definition.stream, routing)
        assert partition.stream == definition.stream or definition.anywhere, (partition, definition.name)
        if traceparent is None and (span := current()) is not None:
            traceparent = span.context.traceparent
        head = Head(
            id=id or self._ids.new(),
            type=definition.name,
            version=definition.version,
            experiment=experiment,
            source=self.source,
            time_ns=self._clock.now_ns(),
            role=self.role,
            epoch=self.epoch,
            causation=causation,
            correlation=correlation,
            traceparent=traceparent,
        )
        # Decoded before it is written: a record refused by readers would lie in the log for ever as a foreign record.
        draft = Draft(partition, head.id, _encoder.encode(head), _encoder.encode(event))
        try:
            _head_decoder.decode(draft.head)
            definition.decode(draft.value)
        except _UNREADABLE as error:
            raise CodecError(
                f"{definition.name} cannot be written: {error}",
                where=str(partition),
                fix="a field has an invalid value; please report this with the experiment file",
            ) from error
        if len(draft.head) + len(draft.value) > limits.RECORD_SIZE_BYTES:
            raise CodecError(
                f"{definition.name} of {draft.size_bytes} bytes is over the limit of {limits.RECORD_SIZE_BYTES}",
                where=str(partition),
                fix="shorten max_response_tokens, or the taskset's rows",
            )
        return draft


def encode_value(event: Event) -> bytes:
    """Encodes an event's payload in MessagePack, byte for byte as stored in a record."""
    return _encoder.encode(event)


def decode_head(record: Record) -> Head:
    """Decodes only the attributes of a record, for routing. Raises CodecError."""
    try:
        return _head_decoder.decode(record.head)
    except UNREADABLE as error:
        raise CodecError(f"unreadable envelope: {error}", where=place(record)) from error


def decode(record: Record) -> Decoded:
    """Decodes the event of a record, upcast to its current version.

    Raises CodecError for bytes of no known event; `rftd.streams.events.catalogue.UnknownVersionError`, a CodecError
    too, for an event of a newer release.
    """
    return decode_with(decode_head(record), record)


def decode_with(head: Head, record: Record) -> Decoded:
    """Decodes the event of a record from attributes decoded earlier. Raises CodecError, as `decode` does."""
    try:
        event = resolve(head.type, head.version).decode(record.value)
    except _UNREADABLE as error:
        raise CodecError(f"unreadable {head.type} v{head.version}: {error}", where=place(record)) from error
    except CodecError as error:
        # Raised by the registry or by an array, without the position. The error's type stays: an unknown version stops
        # its reader, and any other error does not.
        raise type(error)(error.what, where=place(record), fix=error.fix) from error
    return Decoded(record.partition, record.offset, head, event)


def decode_as(record: Record, kind: type[E]) -> E:
    """Decodes the event of a record, which must have type `kind`. Raises CodecError."""
    event = decode(record).event
    if not isinstance(event, kind):
        raise CodecError(f"expected {kind.__name__}, found {type(event).__name__}", where=place(record))
    return event


def place(record: Record) -> str:
    """Formats a record's position as in error texts: `stream/partition@offset`."""
    return f"{record.partition}@{record.offset}"


def to_json(event: Event) -> Any:
    """Converts an event to JSON-ready values for people: arrays as dtype and shape, ids and other bytes as text."""
    return _readable(msgspec.to_builtins(event, builtin_types=(bytes,)))


def _readable(value: Any) -> Any:
    """Replaces arrays by dtype and shape, and bytes by hex digits, for people."""
    match value:
        case dict():
            return {key: _readable(field) for key, field in value.items()}
        # The layout of an `Array`, which is `array_like`.
        case [str(dtype), [*shape], bytes(), str()] if dtype in DTYPES:
            return f"{dtype}[{', '.join(map(str, shape))}]"
        case list() | tuple():
            return [_readable(element) for element in value]
        case bytes():
            return value.hex()
    return value
