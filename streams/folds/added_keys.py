"""`OlderKeys`: the keys of requests that added tasks to one experiment, packed, so that none is ever forgotten.

    the newest ─► a dict of `KeyUse`, some 400 bytes each ─► the older ones ─► a run: 59 bytes each

A run is sorted by the last 64 bits of its keys; the rest of a key is compared in the row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.envelope import Position
from rftd.streams.folds.key_use import KeyUse
from rftd.streams.folds.ranges import Ascending
from rftd.streams.topics import EXPERIMENTS, Partition

UNPACKED: Final = 4096
"""The newest requests of an experiment that are kept unpacked, at least; twice as many at most."""
ADDED: Final = "tasks.added"
_ROW: Final = struct.Struct("<16s16sqqH?")


class KeyRun(msgspec.Struct, frozen=True):
    """As many requests as are packed at once, sorted by their keys."""

    lows: Ascending
    """The last 64 bits of each key, as a number."""
    rows: bytes

    def of(self, key: UUID, experiment: UUID) -> Iterator[KeyUse]:
        """The records that requests with this key became."""
        low = _low(key)
        number = self.lows.at_least(low)
        while number < len(self.lows) and self.lows[number] == low:
            octets, event, time_ns, offset, partition, effective = _ROW.unpack_from(self.rows, number * _ROW.size)
            if octets == key.bytes:
                yield KeyUse(
                    event=UUID(bytes=event),
                    type=ADDED,
                    experiment=experiment,
                    time_ns=time_ns,
                    position=Position(Partition(EXPERIMENTS, partition), offset),
                    effective=effective,
                )
            number += 1


class OlderKeys(msgspec.Struct):
    """The requests of one experiment that are packed."""

    runs: list[KeyRun] = []

    def of(self, key: UUID, experiment: UUID) -> Iterator[KeyUse]:
        """The records that requests with this key became, in the order of the log."""
        for run in self.runs:
            yield from run.of(key, experiment)

    def pack(self, uses: Sequence[tuple[UUID, KeyUse]]) -> None:
        """Takes in uses by their keys, all of this experiment."""
        lows = Ascending()
        rows = bytearray()
        for key, use in sorted(uses, key=lambda keyed: _low(keyed[0])):
            lows.append(_low(key))
            position = use.position
            rows += _ROW.pack(
                key.bytes, use.event.bytes, use.time_ns, position.offset, position.partition.number, use.effective
            )
        self.runs.append(KeyRun(lows=lows, rows=bytes(rows)))


def _low(key: UUID) -> int:
    return key.int & ((1 << 64) - 1)
