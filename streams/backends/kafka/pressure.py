"""Back-pressure of followers on the tail: a partition pauses while what they have not read fills half the ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rftd.ops.clock import Clock
from rftd.streams.envelope import Record
from rftd.streams.topics import Partition

PATIENCE_S: Final = 2.0
"""A partition waits this long for its slowest follower; afterwards that one reads from the cluster by itself."""


class Pressure:
    """Knows how far each follower has read, and which partitions should wait for them."""

    def __init__(self, room_bytes: int, clock: Clock) -> None:
        self._room_bytes = room_bytes
        self._clock = clock
        self._followers: dict[int, Mapping[Partition, int]] = {}
        self._average_bytes: dict[Partition, float] = {}
        self._paused_at_s: dict[Partition, float] = {}
        self._ignored: dict[Partition, int] = {}

    def read(self, follower: int, positions: Mapping[Partition, int]) -> None:
        """Notes a follower's next offsets."""
        self._followers[follower] = positions

    def gone(self, follower: int) -> None:
        """Forgets a follower."""
        self._followers.pop(follower, None)

    def slowest(self, partition: Partition, floor: int = 0) -> int | None:
        """The lowest next offset, not below `floor`, of the followers of a partition; None without one."""
        places = (at[partition] for at in self._followers.values() if partition in at)
        return min((place for place in places if place >= floor), default=None)

    def lag_records(self, heads: Mapping[Partition, int]) -> dict[Partition, int]:
        """For each followed partition, the records between its slowest follower and its head."""
        found: dict[Partition, int] = {}
        for partition, head in heads.items():
            at = self.slowest(partition)
            if at is not None:
                found[partition] = max(0, head - at)
        return found

    def began(self, partition: Partition, offset: int) -> None:
        """Notes where the tail begins: who is below catches up by itself."""
        self._ignored[partition] = offset

    def arrived(self, records: Sequence[Record]) -> None:
        """Notes the sizes of records that the tail took."""
        partition = records[0].partition
        average = sum(len(record.head) + len(record.value) for record in records) / len(records)
        self._average_bytes[partition] = 0.7 * self._average_bytes.get(partition, average) + 0.3 * average

    def changes(self, positions: Mapping[Partition, int]) -> Iterator[tuple[Partition, bool]]:
        """Each partition to pause (True) or to resume (False), given the tail's next offsets."""
        now_s = self._clock.monotonic_s()
        unread = {partition: self._unread_bytes(partition, at) for partition, at in positions.items()}
        crowded = sum(unread.values()) > self._room_bytes
        for partition, size in unread.items():
            since_s = self._paused_at_s.get(partition)
            if since_s is None:
                if crowded and size * 2 * len(unread) > self._room_bytes:
                    self._paused_at_s[partition] = now_s
                    yield partition, True
            elif not crowded or size == 0 or now_s - since_s > PATIENCE_S:
                if now_s - since_s > PATIENCE_S:
                    self._ignored[partition] = positions[partition]
                del self._paused_at_s[partition]
                yield partition, False

    def pauses(self, partition: Partition) -> bool:
        """True if the partition waits now."""
        return partition in self._paused_at_s

    def _unread_bytes(self, partition: Partition, at: int) -> float:
        # A follower that let the patience run out counts again once it has come past that place.
        floor = self._ignored.get(partition, 0)
        slowest = self.slowest(partition, floor)
        if slowest is None:
            return 0.0
        return max(0, at - slowest) * self._average_bytes.get(partition, 0.0)
