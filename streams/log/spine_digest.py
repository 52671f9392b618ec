"""A digest of an experiment's spine as read by its trainer, carried by steps and checkpoints.

The digest is the hash chain over the experiment's own records of its partition, void or not, each once: equal on every
backend. Rewriting a record below the last mark, even with a recomputed chain, requires rewriting every later mark too,
and a mark also lies in the folder of each checkpoint.
"""

from __future__ import annotations

from collections import deque
from typing import Final
from uuid import UUID

from rftd.streams.events.step import SpineMark
from rftd.streams.log.chain import GENESIS, link
from rftd.streams.log.deadletters import head_of
from rftd.streams.log.envelope import Record
from rftd.streams.log.follower import Follower
from rftd.streams.log.log import EventLog
from rftd.streams.log.newest import Newest
from rftd.streams.log.topics import EXPERIMENTS, Partition, partition_of

_IDS: Final = 16_384
"""Number of remembered ids, for skipping repetitions: as many as a subscription knows (`streams.log.log`)."""
_BEFORE_RECORDS: Final = 2_000
"""Number of records before a mark read again for their ids: as many as a subscription reads below its start."""


class SpineDigest:
    """The digest of one experiment's spine, extended record by record."""

    def __init__(self, experiment: UUID, mark: SpineMark) -> None:
        """Continues the digest of `mark`."""
        self.partition: Partition = partition_of(EXPERIMENTS, experiment)
        self.end = mark.end
        self._experiment = experiment
        self._start = mark.start
        self._digest = mark.digest
        self._ids: Newest[UUID, None] = Newest(_IDS)

    @property
    def mark(self) -> SpineMark:
        """Digest of the spine as of the last record added."""
        return SpineMark(self._start, self.end, self._digest)

    def take(self, record: Record) -> None:
        """Adds a record of any partition; records of other experiments and repeated ones are ignored."""
        if record.partition != self.partition or record.offset < self.end:
            return
        if self.is_new(record):
            self._digest = link(self._digest, record.head, record.value)
        self.end = record.offset + 1

    def recall(self, record: Record) -> None:
        """Remembers the id of a record before the mark, so that its repetition is ignored."""
        if record.partition == self.partition and record.offset < self.end:
            self.is_new(record)

    def is_new(self, record: Record) -> bool:
        """True for a record of the experiment with an id not seen before, which is then remembered."""
        head = head_of(record)
        if head is None or head.experiment != self._experiment or head.id in self._ids:
            return False
        self._ids.put(head.id, None)
        return True


async def follow_digest(
    log: EventLog, follower: Follower, experiment: UUID, mark: SpineMark | None, *, begin: int | None
) -> SpineDigest:
    """Computes the digest up to the follower's position, and has the follower extend it from then on.

    `mark` is the newest step's, if any step has one. Without it the digest begins at offset `begin`, or at the
    follower's present position: a long history written without digests is not read again.
    """
    if mark is None:
        start = begin if begin is not None else follower.positions[partition_of(EXPERIMENTS, experiment)]
        mark = SpineMark(start, start, GENESIS)
    digest = SpineDigest(experiment, mark)
    offset = max(0, digest.end - _BEFORE_RECORDS)
    while offset < follower.positions[digest.partition]:
        records = await log.read(digest.partition, offset)
        if not records:
            break
        for record in records:
            digest.recall(record)
            digest.take(record)
        offset = records[-1].offset + 1
    follower.witness = digest.take  # no await since the position was compared
    return digest


class SpineTrail:
    """Digests of a spine during a check, available at every offset where a mark may still end."""

    _LENGTH: Final = 1 << 16  # offsets kept; a mark further back is computed again from the log

    def __init__(self) -> None:
        self.mark: SpineMark | None = None
        """Newest mark compared so far; None before one."""
        self.broken = False
        self._start = -1
        self._digest = GENESIS
        self._trail: deque[tuple[int, bytes]] = deque(maxlen=self._LENGTH)

    def take(self, record: Record) -> None:
        """Adds a record of the experiment with a new id."""
        if self._start < 0:
            self._start = record.offset
            self._trail.append((record.offset, GENESIS))
        self._digest = link(self._digest, record.head, record.value)
        self._trail.append((record.offset + 1, self._digest))

    def at(self, mark: SpineMark) -> bytes | None:
        """Returns the digest expected of `mark`; None if the records it covers have to be read again."""
        first_offset = self.mark.start if self.mark is not None else self._start
        if (self.mark is None and mark.start > first_offset) or not self._trail or self._trail[0][0] > mark.end:
            return None
        # Marks only grow: no later mark ends at a lower offset.
        while len(self._trail) > 1 and self._trail[1][0] <= mark.end:
            self._trail.popleft()
        return self._trail[0][1]

    def goes_on(self, mark: SpineMark, digest: bytes, later_records: list[Record]) -> None:
        """Continues after `mark`, whose digest was computed again from the log; `later_records` are the records after
        it.
        """
        self._digest = digest
        self._trail.clear()
        self._trail.append((mark.end, digest))
        for record in later_records:
            self.take(record)
