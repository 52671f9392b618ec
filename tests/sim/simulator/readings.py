"""The log of a world as who misses nothing reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rftd.streams.folds.run_state import partitions_of
from rftd.streams.log import topics
from rftd.streams.log.codec import decode, decode_head
from rftd.streams.log.envelope import Decoded, Record
from rftd.streams.log.fencing import FenceView

if TYPE_CHECKING:
    from simulator.world import World


def records(world: World) -> Iterator[Record]:
    """Every record of the experiment but heartbeats, partition by partition."""
    for partition in partitions_of(world.experiment):
        if partition.stream != topics.HEARTBEATS:
            for record in world.log.stored(partition, 0, 1 << 30):
                if decode_head(record).experiment in (None, world.experiment):
                    yield record


def effective(world: World, *streams: str) -> Iterator[Decoded]:
    """Events in some streams, or in all, that a fence did not make void, as the product reads the fences."""
    fences = FenceView()
    for record in records(world):
        decoded = decode(record)
        admitted = fences.admit(record.partition, decoded.head, decoded.event)
        if admitted and (not streams or record.partition.stream in streams):
            yield decoded
