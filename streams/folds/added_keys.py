"""`OlderKeys`: the keys of requests that added tasks to one experiment, packed, so that none is ever forgotten.

the newest ─► a dict of `KeyUse`, some 400 bytes each ─► the older ones ─► packed rows: 59 bytes each
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.folds.key_use import KeyUse
from rftd.streams.folds.keyed_rows import KeyedRows
from rftd.streams.log.envelope import Position
from rftd.streams.log.topics import EXPERIMENTS, Partition

UNPACKED: Final = 4096
"""The newest requests of an experiment that are kept unpacked, at least; twice as many at most."""
ADDED: Final = "tasks.added"
_VALUE: Final = struct.Struct("<16sqqH?")


class OlderKeys(msgspec.Struct):
    """The requests of one experiment that are packed."""

    runs: list[KeyedRows] = []

    def of(self, key: UUID, experiment: UUID) -> Iterator[KeyUse]:
        """The records that requests with this key became, in the order of the log."""
        for value in (value for run in self.runs for value in run.find(key)):
            event, time_ns, offset, partition, effective = _VALUE.unpack(value)
            yield KeyUse(
                event=UUID(bytes=event),
                type=ADDED,
                experiment=experiment,
                time_ns=time_ns,
                position=Position(Partition(EXPERIMENTS, partition), offset),
                effective=effective,
            )

    def pack(self, uses: Sequence[tuple[UUID, KeyUse]]) -> None:
        """Takes in uses by their keys, all of this experiment."""
        self.runs.append(KeyedRows.of([(key, _packed(use)) for key, use in uses]))


def _packed(use: KeyUse) -> bytes:
    position = use.position
    return _VALUE.pack(use.event.bytes, use.time_ns, position.offset, position.partition.number, use.effective)
