"""`EventLog`: the contract that every stream backend keeps, and that `tests/contract` checks.

                 truncated      readable                          head
    partition   ┄┄┄┄┄┄┄┄┄┄┄│ r3 │ r4 │ r5 │ r6 │ r7 │ ┄ next append lands here
                                ▲ offsets grow by one (Kafka: grow), never change, never come back

1. **Durable.** When `append` returns, each record is readable at the returned position for ever (within
   retention), after SIGKILL and power loss. The embedded log can drop the payload of experiences on purpose; all else
   of such a record stays (`rftd.streams.log.payloads`).
2. **Ordered.** Records of one append land in its order within each partition. Nothing is promised across partitions.
3. **Idempotent.** A record whose id is already in the log changes nothing; its first position is returned. On Kafka,
   which many processes write, this is exact inside windows: an append knows the last 100,000 ids of its process and
   the newest 2,000 of each partition as they were when it first wrote there (kept up where it follows the partition),
   and a subscription leaves out a record whose id is among the 16,384 before it, counted from 2,000 below its start.
   A repetition further away is delivered; folds take the first by its meaning (the first completion of a rollout
   wins). `read` leaves out the repetitions that this process has met.
4. **Unknown outcomes.** If `append` raises or is cancelled, any prefix per partition may have landed. The caller
   retries the same drafts; rule 3 makes that safe. An append is therefore never a transaction: what must be atomic
   is one record.
5. **Readers see a prefix**, without gaps, of what was or will be acknowledged.
   A record's `chain` covers those before it on the embedded log, and on Kafka that record alone.
6. **Honest loss.** `check_heads` raises LogLossError if a remembered head is not in the log, naming the position;
   reading a damaged record raises LogCorruptError. Nothing is skipped in silence.
7. **Bounded.** Appends wait (back-pressure) when the writer's queue is full; reads return at most what was asked for.
   On Kafka an append is tried for 60 s and a read for 30 s while brokers are away; to a subscription nothing arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from rftd.ops import limits
from rftd.ops.errors import RftdError
from rftd.streams.log.chain import Heads
from rftd.streams.log.envelope import Draft, Position, Record
from rftd.streams.log.topics import Partition


class Subscription(Protocol):
    """A reader of some partitions that remembers how far it has come; used by one task at a time."""

    @property
    def positions(self) -> Mapping[Partition, int]:
        """The next offset to be read, for each subscribed partition."""
        ...

    async def next(self, *, wait_s: float, max_records: int = limits.FETCH_RECORDS) -> list[Record]:
        """The next records, each partition in order; empty if none arrived within `wait_s` seconds.

        Cancelling loses nothing: a record counts as delivered only once it was returned.
        """
        ...

    async def close(self) -> None:
        """Releases what the subscription holds; idempotent."""
        ...


class EventLog(Protocol):
    """An append-only log of partitioned streams; see the module's text for what it promises."""

    @property
    def failure(self) -> RftdError | None:
        """Why the last append failed, for readiness; None while appends work, and where the log lies elsewhere."""
        ...

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Positions of the drafts, in their order, once all are durable.

        Raises CodecError for a draft over `limits.RECORD_SIZE_BYTES` (nothing is written), LogFullError without
        space, UnreachableError if the outcome is unknown.
        """
        ...

    async def read(
        self,
        partition: Partition,
        start: int,
        *,
        max_records: int = limits.FETCH_RECORDS,
        max_size_bytes: int = limits.FETCH_SIZE_BYTES,
    ) -> list[Record]:
        """Records of one partition from offset `start` on, oldest first; empty at the head.

        At least one record is returned if one exists, however large. A `start` below the retained range begins at
        its first record.
        """
        ...

    def subscribe(self, positions: Mapping[Partition, int]) -> Subscription:
        """A subscription that begins at the given offsets."""
        ...

    async def heads(self) -> Heads:
        """The current head of every partition that holds a record."""
        ...

    async def check_heads(self, remembered: Heads) -> None:
        """Returns if every remembered head is in this log unchanged; raises LogLossError naming the first not."""
        ...

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        """Forgets records below `before_offset`; only retention of streams that are no truth calls it."""
        ...

    async def close(self) -> None:
        """Releases everything; appends under way are completed first. Idempotent."""
        ...


def start_of(partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Positions that begin each partition at its first record."""
    return dict.fromkeys(partitions, 0)


class HeldBack(NamedTuple):
    """The records of a partition that nobody may read yet, because another program's transaction is open there."""

    partition: Partition
    first: int
    """The offset that is read next, once the transaction ends."""
    end: int
    since_s: float
    """When that was first seen, by the log's monotonic clock."""


@runtime_checkable
class SharedLog(Protocol):
    """A log that other programs may write to, in transactions."""

    @property
    def held_back(self) -> HeldBack | None:
        """The records that an open transaction has held back for longest; None without one."""
        ...
