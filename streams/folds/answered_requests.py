"""`AnsweredRequests`: the first request of each key, for never executing a repetition again.

the newest ─► a dict of `OpenRequest`, some 400 bytes each ─► the older ones ─► packed rows: 50 bytes each
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.folds.added_keys import UNPACKED
from rftd.streams.folds.keyed_rows import KeyedRows
from rftd.streams.log.envelope import Position
from rftd.streams.log.topics import REQUESTS, Partition

_VALUE: Final = struct.Struct("<qH16s")
"""Layout of a packed request, behind its key."""


class OpenRequest(msgspec.Struct, frozen=True, gc=False):
    """A request of another program not answered yet: position, request key and digest of the body."""

    position: Position
    """Position of the record in the log."""
    key: UUID | None
    """None for a request without an identity, to be refused."""
    digest: bytes
    """First 16 bytes of the body's digest."""


class AnsweredRequests(msgspec.Struct):
    """The first request of every key ever used, without limit."""

    newest: dict[UUID, OpenRequest] = {}
    """First requests of the newest keys."""
    older: list[KeyedRows] = []
    """First requests of older keys, packed."""

    def get(self, key: UUID) -> OpenRequest | None:
        """Returns the first request with this key; None without one."""
        newest = self.newest.get(key)
        if newest is not None:
            return newest
        for packed_request in (packed_request for run in self.older for packed_request in run.find(key)):
            offset, partition, digest = _VALUE.unpack(packed_request)
            return OpenRequest(Position(Partition(REQUESTS, partition), offset), key, digest)
        return None

    def first(self, request: OpenRequest) -> OpenRequest:
        """Returns the first request with the key of `request`, which is `request` itself unless there is an earlier
        one.
        """
        assert request.key is not None
        earlier = self.get(request.key)
        if earlier is not None:
            return earlier
        self.newest[request.key] = request
        if len(self.newest) >= 2 * UNPACKED:
            oldest = list(self.newest.items())[:UNPACKED]
            self.older.append(KeyedRows.of([(key, _packed_request(used)) for key, used in oldest]))
            for key, _ in oldest:
                del self.newest[key]
        return request


def _packed_request(request: OpenRequest) -> bytes:
    """Returns a request as bytes."""
    return _VALUE.pack(request.position.offset, request.position.partition.number, request.digest)
