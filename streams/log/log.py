"""`EventLog`: the contract of every stream backend, checked by `tests/contract`.

                 truncated      readable                          head
    partition   ┄┄┄┄┄┄┄┄┄┄┄│ r3 │ r4 │ r5 │ r6 │ r7 │ ┄ next append lands here
                                ▲ offsets grow by one (Kafka: grow), never change, never come back

1. **Durable.** When `append` returns, each record is readable at the returned position for ever (within
   retention), after SIGKILL and power loss. The embedded log can drop the payload of experiences on purpose; the
   rest of the record stays (`rftd.streams.log.payloads`).
2. **Ordered.** Records of one append land in its order within each partition. Nothing is promised across partitions.
3. **Idempotent.** A record whose id is already in the log changes nothing; its first position is returned. On Kafka,
   with many writing processes, this is exact inside windows: an append knows the last 100,000 ids of its process and
   the newest 2,000 of each partition as of its first write there (kept up for followed partitions), and a
   subscription leaves out a record with an id among the 16,384 before it, counted from 2,000 below its start.
   A repetition further away is delivered; folds take the first by its meaning (the first completion of a rollout
   wins). `read` leaves out the repetitions met by this process.
4. **Unknown outcomes.** If `append` raises or is cancelled, any prefix per partition may have landed. The caller
   retries the same drafts; rule 3 makes the retry safe. An append is therefore never a transaction: atomic facts must
   be one record.
5. **Readers see a prefix**, without gaps, of acknowledged records and of records about to be acknowledged.
   A record's `chain` covers the records before it on the embedded log, and on Kafka the record alone.
6. **Honest loss.** `check_heads` raises LogLossError if a remembered head is not in the log, naming the position;
   reading a damaged record raises LogCorruptError. Nothing is skipped in silence.
7. **Bounded.** Appends wait (back-pressure) when the writer's queue is full; reads never exceed the requested size.
   On Kafka an append is tried for 60 s and a read for 30 s while brokers are away; a subscription stays empty.
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
    """Reads several partitions from given offsets on; used by one task at a time."""

    @property
    def positions(self) -> Mapping[Partition, int]:
        """Offset of the next record to return, by partition."""
        ...

    async def next(self, *, wait_s: float, max_records: int = limits.FETCH_RECORDS) -> list[Record]:
        """Returns the next records, each partition in order; empty if none arrived within `wait_s` seconds.

        Cancelling loses nothing: a record counts as delivered only once it was returned.
        """
        ...

    async def close(self) -> None:
        """Releases the subscription's resources; idempotent."""
        ...


class EventLog(Protocol):
    """An append-only log of partitioned streams; the module's text states the guarantees."""

    @property
    def failure(self) -> RftdError | None:
        """Error of the last append, for the readiness probe; None while appends succeed, and for another
        process's log.
        """
        ...

    async def append(self, drafts: Sequence[Draft]) -> list[Position]:
        """Appends the drafts and returns their positions, in order, once all are durable.

        Raises CodecError for a draft over `limits.RECORD_SIZE_BYTES` (nothing is written), LogFullError without space,
        UnreachableError if the outcome is unknown.
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
        """Returns records of one partition from offset `start` on, oldest first; empty at the head.

        At least one record is returned if one exists, however large. A `start` below the retained range begins at its
        first record.
        """
        ...

    def subscribe(self, positions: Mapping[Partition, int]) -> Subscription:
        """Returns a subscription beginning at these offsets."""
        ...

    async def heads(self) -> Heads:
        """Returns the current head of every partition with records."""
        ...

    async def check_heads(self, remembered: Heads) -> None:
        """Returns if the log has every remembered head, unchanged. Raises LogLossError naming the first missing one."""
        ...

    async def truncate(self, partition: Partition, before_offset: int) -> None:
        """Deletes records below `before_offset`; used only for streams with a retention time (outside `TRUTH`)."""
        ...

    async def close(self) -> None:
        """Completes the appends in progress, and releases all resources. Idempotent."""
        ...


def start_of(partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Returns offset 0 for each partition: positions at the beginning of the log."""
    return dict.fromkeys(partitions, 0)


class HeldBack(NamedTuple):
    """Records that readers cannot see yet, because another program's transaction is still open."""

    partition: Partition
    first: int
    """Offset of the first hidden record."""
    end: int
    """Offset after the last hidden record known."""
    since_s: float
    """Time at which the open transaction was first noticed, on the log's monotonic clock."""


@runtime_checkable
class SharedLog(Protocol):
    """A log to which other programs can write, also in transactions."""

    @property
    def held_back(self) -> HeldBack | None:
        """Records hidden for longest by an open transaction; None if there are none."""
        ...
