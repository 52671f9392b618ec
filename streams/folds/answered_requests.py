"""`AnsweredRequests`: the request that each key was first used for, so that no repetition of it is carried out again.

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


class OpenRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that waits for its answer."""

    position: Position
    key: UUID | None
    """None: it has no identity, and will be refused."""
    digest: bytes
    """Of 16 bytes."""


class AnsweredRequests(msgspec.Struct):
    """The first request of each key, however many there are."""

    newest: dict[UUID, OpenRequest] = {}
    older: list[KeyedRows] = []

    def get(self, key: UUID) -> OpenRequest | None:
        """The request that the key was used for; None if there is none."""
        newest = self.newest.get(key)
        if newest is not None:
            return newest
        for value in (value for run in self.older for value in run.find(key)):
            offset, partition, digest = _VALUE.unpack(value)
            return OpenRequest(Position(Partition(REQUESTS, partition), offset), key, digest)
        return None

    def first(self, request: OpenRequest) -> OpenRequest:
        """The request that its key was used for: this one, if there is no other."""
        assert request.key is not None
        known = self.get(request.key)
        if known is not None:
            return known
        self.newest[request.key] = request
        if len(self.newest) >= 2 * UNPACKED:
            oldest = list(self.newest.items())[:UNPACKED]
            self.older.append(KeyedRows.of([(key, _packed(used)) for key, used in oldest]))
            for key, _ in oldest:
                del self.newest[key]
        return request


def _packed(request: OpenRequest) -> bytes:
    return _VALUE.pack(request.position.offset, request.position.partition.number, request.digest)
