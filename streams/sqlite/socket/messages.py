"""Requests (client to server) and replies, as MessagePack arrays; `id` pairs them on one connection.

The arrays carry no names of fields: adding, moving or removing a field requires another `PROTOCOL`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, cast

import msgspec

from rftd.ops.decoding import msgpack_decoder
from rftd.ops.errors import LogError, RftdError
from rftd.streams.log.chain import Heads, Mark
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.topics import Partition
from rftd.streams.sqlite.socket.frames import PREFIX_BYTES, seal

PROTOCOL: Final = 2
"""Version of the messages, compared at the greeting."""

WireHeads = list[tuple[Partition, Mark]]
"""Heads as sent: pairs of a partition and its next offset with the chain."""


# gc=False: messages hold no cycles, and the collector need not walk thousands of records a second.
class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all messages, sent as arrays with a number for the type."""

    id: int
    """Number of the request, chosen by the client, and repeated in the reply."""


class Hello(_Message, frozen=True, tag=1):
    """First message of each connection: the client's protocol version, and the heads acknowledged to the
    client before.
    """

    protocol: int
    """The client's `PROTOCOL`."""
    heads: WireHeads
    """Heads acknowledged to the client on earlier connections."""


class Append(_Message, frozen=True, tag=2):
    """Request to append drafts, answered by `Appended`."""

    drafts: list[Draft]
    """The records to append."""


class ReadFrom(_Message, frozen=True, tag=3):
    """Request for records of one partition from an offset, answered by `Records`."""

    partition: Partition
    """The partition."""
    start: int
    """First offset."""
    max_records: int
    """Maximum number of records."""
    max_size_bytes: int
    """Maximum size of the records together."""


class Fetch(_Message, frozen=True, tag=4):
    """Long poll, answered by `Records` when a partition grows beyond its position, or empty after `wait_s` seconds."""

    positions: list[tuple[Partition, int]]
    """Next offset of each partition."""
    wait_s: float
    """Longest wait."""
    max_records: int
    """Maximum number of records."""


class AskHeads(_Message, frozen=True, tag=5):
    """Request for the present heads, answered by `HeadsAre`."""

    pass


class CheckHeads(_Message, frozen=True, tag=6):
    """Request to check that the log has these heads, answered by `DoneReply` or `Failed`."""

    heads: WireHeads
    """The heads."""


class Truncate(_Message, frozen=True, tag=7):
    """Request to delete records below an offset, answered by `DoneReply`."""

    partition: Partition
    """The partition."""
    before_offset: int
    """Records below this offset are deleted."""


class Cancel(_Message, frozen=True, tag=8):
    """Notice that the client no longer waits for request `id`; not answered."""


class Appended(_Message, frozen=True, tag=21):
    """Positions of appended drafts."""

    positions: list[Position]
    """A position for each draft, in their order."""
    heads: WireHeads
    """Heads of the partitions appended to, to be remembered by the client."""


class Records(_Message, frozen=True, tag=22):
    """Records of a read or a poll."""

    records: list[Record]
    """The records, possibly none."""


class HeadsAre(_Message, frozen=True, tag=23):
    """The present heads."""

    heads: WireHeads
    """The heads."""


class DoneReply(_Message, frozen=True, tag=24):
    """Reply to a request without a result."""

    pass


class Welcome(_Message, frozen=True, tag=26):
    """Reply to an accepted greeting."""

    file: str
    """Path of the log's file, which clients on this machine may read directly; empty if there is none."""


class Failed(_Message, frozen=True, tag=25):
    """Reply with an error: its code and texts."""

    code: str
    """The error's code, by which the client recreates its type."""
    what: str
    """What failed."""
    where: str | None
    """The place; None if not stated."""
    field: str | None
    """The field concerned; None if not stated."""
    fix: str | None
    """What to do; None if not stated."""


Request = Hello | Append | ReadFrom | Fetch | AskHeads | CheckHeads | Truncate | Cancel
"""Every message from client to server."""
Reply = Appended | Records | HeadsAre | DoneReply | Welcome | Failed
"""Every message from server to client."""

Make = Callable[[int], Request]
"""Builds a request around its id."""

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
decode_request: Callable[[bytes | memoryview], Request] = msgpack_decoder(cast("type[Request]", Request)).decode
"""Decodes a request."""
decode_reply: Callable[[bytes | memoryview], Reply] = msgpack_decoder(cast("type[Reply]", Reply)).decode
"""Decodes a reply."""


def framed(message: Request | Reply) -> memoryview:
    """Encodes a message as a frame; its content is copied once. Raises CodecError over the limit."""
    frame = bytearray(PREFIX_BYTES)
    _encoder.encode_into(message, frame, PREFIX_BYTES)
    seal(frame)
    return memoryview(frame)


def to_wire(heads: Heads) -> WireHeads:
    """Converts heads to the form carried by a message."""
    return list(heads.items())


def failed(id: int, error: RftdError) -> Failed:
    """Builds the reply carrying an error: code, texts and place of the error."""
    return Failed(id, error.code, error.what, error.where, error.field, error.fix)


def error_of(reply: Failed) -> RftdError:
    """Rebuilds the error carried by a reply, of the class with its code; LogError for a code of a newer release."""
    kind = next((kind for kind in _kinds(RftdError) if kind.code == reply.code), LogError)
    return kind(reply.what, where=reply.where, field=reply.field, fix=reply.fix)


def _kinds(base: type[RftdError]) -> Iterator[type[RftdError]]:
    """Yields an error's class and all classes below."""
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)
