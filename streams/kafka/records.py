"""Records as messages of Kafka: the envelope in headers, and the recognition of repeated records.

The envelope is CloudEvents 1.0 in binary mode for other programs, and the exact head and a digest for rftd:

rftd-head  the head's bytes, authoritative: read back byte for byte as appended
rftd-sum   `Record.chain`: 16 bytes of blake2b over head and value (several writers share a partition, so the digest
           covers the one record, without the records before it)
ce_*       the same attributes for programs with support for CloudEvents; ce_id also identifies a repeated record

A record without rftd-head but with the attributes required by CloudEvents is another program's: its head is built from
them. Any other record is delivered with an empty head, refused by `decode_head`; so is a request (see
`rftd.streams.log.requests`), always delivered in structured mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.ops.clock import iso
from rftd.ops.decoding import UNREADABLE, msgpack_decoder
from rftd.ops.ids import derive
from rftd.streams.log.chain import GENESIS, link
from rftd.streams.log.envelope import Draft, Head, Record
from rftd.streams.log.newest import Newest
from rftd.streams.log.requests import structured
from rftd.streams.log.topics import REQUESTS, Partition

Headers = Sequence[tuple[str, bytes | None]]
"""A message's headers: keys and values."""

HEAD: Final = "rftd-head"
"""Header with the record's head."""
SUM: Final = "rftd-sum"
"""Header with the digest over head and value."""
ID: Final = "ce_id"
"""Header with the event's id as text."""
_ATTRIBUTES_HEAD_SIZE_BYTES: Final = 16 * 1024
"""Maximum size of a head whose attributes are also written as headers of CloudEvents."""
_FOREIGN: Final = UUID("6b61666b-6120-5f66-8000-726674640000")
"""Namespace of the ids made for other programs' events."""
_decoder = msgpack_decoder(Head)
"""Decoder of a record's attributes."""
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
"""Encoder of a record's attributes, with ids as 16 bytes."""


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """The parts of a record's envelope as carried by Kafka's headers."""

    key: bytes
    """Bytes derived from the event id, equal for repetitions of a record; empty without an id."""
    head: bytes
    """The record's head."""
    sum: bytes
    """The digest over head and value."""


def key_of(draft: Draft) -> bytes:
    """Returns the bytes by which repetitions of a draft are recognised."""
    return str(draft.id).encode()


def headers_of(draft: Draft, key: bytes, sum_: bytes) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """Builds Kafka's key of a draft's record (the experiment, if any) and the headers."""
    # In this order: `envelope_of` reads the first three without looking at the others.
    headers = [(HEAD, draft.head), (SUM, sum_), (ID, key), ("ce_specversion", b"1.0")]
    if len(draft.head) > _ATTRIBUTES_HEAD_SIZE_BYTES:
        return None, headers
    try:
        head = _decoder.decode(draft.head)
    except UNREADABLE:
        return None, headers
    headers += [
        ("ce_type", _utf8(head.type)),
        ("ce_source", _utf8(head.source)),
        ("ce_time", _time_text(head.time_ns // 1_000_000)),
        ("ce_rftdversion", str(head.version).encode()),
        ("content-type", b"application/msgpack"),
    ]
    subject = None
    if head.experiment is not None:
        subject = _uuid_text(head.experiment)
        headers.append(("ce_subject", subject))
    if head.traceparent:
        # Both: clients of Kafka look for the first, readers of CloudEvents for their extension's.
        traceparent = head.traceparent.encode()
        headers += [("traceparent", traceparent), ("ce_traceparent", traceparent)]
    return subject, headers


def sum_of(head: bytes, value: bytes) -> bytes:
    """Computes the digest of a single record, the chain after `GENESIS`."""
    return link(GENESIS, head, value)


def envelope_of(headers: Headers, value: bytes) -> Envelope:
    """Decodes the envelope of a message; never raises."""
    # The writer of rftd puts these three first.
    if len(headers) > 2 and headers[0][0] == HEAD and headers[1][0] == SUM and headers[2][0] == ID:
        return Envelope(headers[2][1] or b"", headers[0][1] or b"", headers[1][1] or b"")
    named = {name: content for name, content in headers if content is not None}
    if HEAD in named:
        head = named[HEAD]
        return Envelope(named.get(ID, b""), head, named.get(SUM) or sum_of(head, value))
    foreign = _foreign(named)
    if foreign is None:
        return Envelope(b"", b"", sum_of(b"", value))
    head = _encoder.encode(foreign)
    return Envelope(str(foreign.id).encode(), head, sum_of(head, value))


def _request(headers: Headers, value: bytes) -> bytes | None:
    """Converts a request in binary mode to the structured form; None for any other record."""
    if headers and headers[0][0] == HEAD:
        return None
    try:
        named = {name.lower(): content.decode() for name, content in headers if content is not None and name != HEAD}
    except UnicodeDecodeError:
        return None
    if len(named) < len(headers) or "ce_type" not in named:
        return None
    attributes = {name.removeprefix("ce_"): text for name, text in named.items() if name.startswith("ce_")}
    if "traceparent" in named:
        attributes["traceparent"] = named["traceparent"]
    if "content-type" in named:
        attributes["datacontenttype"] = named["content-type"]
    return structured(attributes, value)


def _foreign(named: dict[str, bytes]) -> Head | None:
    """Builds the head described by another program's CloudEvents attributes; None without a valid description."""
    try:
        text = {
            name.lower(): content.decode() for name, content in named.items() if name.lower().startswith(("ce_", "tr"))
        }
        if text["ce_specversion"] != "1.0":
            return None
        source = text["ce_source"]
        subject = text.get("ce_subject")
        return Head(
            id=_uuid(text["ce_id"]) or derive(_FOREIGN, source, text["ce_id"]),
            type=text["ce_type"],
            version=min(
                int(text.get("ce_rftdversion", "1")), 1 << 32
            ),  # beyond every known version, and still encodable
            experiment=_uuid(subject) if subject else None,
            source=source,
            time_ns=_time_ns(text.get("ce_time")),
            traceparent=text.get("traceparent") or text.get("ce_traceparent"),
        )
    except (KeyError, ValueError, ArithmeticError):
        return None


def _uuid(text: str) -> UUID | None:
    """Parses an id; None for other text."""
    try:
        return UUID(text)
    except ValueError:
        return None


def _time_ns(text: str | None) -> int:
    """Parses a time in ISO 8601, to milliseconds, as nanoseconds of Unix time; 0 without a text."""
    if text is None:
        return 0
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000) * 1_000_000


@lru_cache(maxsize=1024)
def _time_text(time_ms: int) -> bytes:
    """Returns a time as ISO 8601."""
    return iso(time_ms * 1_000_000).encode()


@lru_cache(maxsize=4096)
def _utf8(text: str) -> bytes:
    """Encodes a text; recent results are cached."""
    return text.encode()


@lru_cache(maxsize=4096)
def _uuid_text(id: UUID) -> bytes:
    """Encodes an id as text; recent results are cached."""
    return str(id).encode()


WINDOW_RECORDS: Final = 16_384
"""Number of newest ids a reader remembers per partition; a repetition further away counts as a new record, until `rftd
verify` finds it.
"""
DUPLICATES_MAX: Final = 65_536
"""Maximum number of repetitions remembered per partition; beyond it, the oldest are forgotten."""


class IdWindow:
    """The newest ids of one partition, with the offset of each id's first record."""

    def __init__(self, records: int = WINDOW_RECORDS) -> None:
        """Begins empty, with room for this number of ids."""
        self._offsets: Newest[bytes, int] = Newest(records)

    def admit(self, key: bytes, offset: int) -> bool:
        """Remembers an id with its offset; False if an earlier record in the window has the id."""
        if not key:
            return True
        first = self._offsets.get(key)
        # `<`: a record read a second time is the first occurrence, not a repetition.
        if first is not None and first < offset:
            return False
        self._offsets.put(key, offset)
        return True

    def find(self, key: bytes) -> int | None:
        """Returns the offset of the first record with this id, if recent."""
        return self._offsets.get(key)


class Duplicates:
    """Offsets of repeated records, shared by all readers of the process: each adds what it finds, and skips what is
    known.
    """

    def __init__(self) -> None:
        """Begins without a repeated record."""
        self._offsets: dict[Partition, dict[int, None]] = {}

    def add(self, partition: Partition, offset: int) -> None:
        """Remembers the offset of a repetition; beyond `DUPLICATES_MAX`, the oldest is forgotten."""
        offsets = self._offsets.setdefault(partition, {})
        offsets[offset] = None
        if len(offsets) > DUPLICATES_MAX:
            del offsets[next(iter(offsets))]

    def holds(self, partition: Partition, offset: int) -> bool:
        """True if the record at the offset is a known repetition."""
        return offset in self._offsets.get(partition, ())

    def without(self, records: list[Record]) -> list[Record]:
        """Returns the records without known repetitions."""
        if not self._offsets or not records:
            return records
        repeated = self._offsets.get(records[0].partition)
        if not repeated:
            return records
        return [record for record in records if record.offset not in repeated]


def records_of(
    partition: Partition, messages: Sequence[Any], window: IdWindow | None, duplicates: Duplicates
) -> list[Record]:
    """Converts aiokafka's messages, all of one partition and in order, to records; ids repeated within the window are
    noted in `duplicates`, and their records returned as well.
    """
    records: list[Record] = []
    for message in messages:
        payload = message.value or b""
        request = _request(message.headers, payload) if partition.stream == REQUESTS else None
        if request is None:
            envelope = envelope_of(message.headers, payload)
        else:  # no key: a reader leaving out a second request with one id would leave it without its refusal
            payload = request
            envelope = Envelope(b"", b"", sum_of(b"", payload))
        if window is not None and not window.admit(envelope.key, message.offset):
            duplicates.add(partition, message.offset)
        records.append(Record(partition, message.offset, envelope.sum, envelope.head, payload))
    return records
