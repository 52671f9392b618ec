"""`OlderKeys`: the keys of requests adding tasks to one experiment, packed, for remembering every key for ever.

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
"""Minimum number of an experiment's newest requests kept unpacked; the maximum is twice as high."""
ADDED: Final = "tasks.added"
"""Type of the event adding tasks."""
_VALUE: Final = struct.Struct("<16sqqH?")
"""Layout of a packed use, behind its key."""


class OlderKeys(msgspec.Struct):
    """The older requests of one experiment with added tasks, packed in sorted rows of 59 bytes."""

    runs: list[KeyedRows] = []
    """Packed rows in sorted runs of falling length."""

    def of(self, key: UUID, experiment: UUID) -> Iterator[KeyUse]:
        """Yields the records written by requests with this key, in the order of the log."""
        for packed_use in (packed_use for run in self.runs for packed_use in run.find(key)):
            event, time_ns, offset, partition, effective = _VALUE.unpack(packed_use)
            yield KeyUse(
                event=UUID(bytes=event),
                type=ADDED,
                experiment=experiment,
                time_ns=time_ns,
                position=Position(Partition(EXPERIMENTS, partition), offset),
                effective=effective,
            )

    def pack(self, uses: Sequence[tuple[UUID, KeyUse]]) -> None:
        """Adds uses by their keys, all of this experiment."""
        self.runs.append(KeyedRows.of([(key, _packed_use(use)) for key, use in uses]))


def _packed_use(use: KeyUse) -> bytes:
    """Returns a use as bytes."""
    position = use.position
    return _VALUE.pack(use.event.bytes, use.time_ns, position.offset, position.partition.number, use.effective)
