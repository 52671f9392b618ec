"""Records on their way to Kafka: `Slice` (one append's drafts for a partition), `Filling` (a batch being filled),
`Producers`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka

from rftd.ops import limits
from rftd.streams.kafka.connect import arguments, translate
from rftd.streams.kafka.records import headers_of, sum_of
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.log.envelope import Draft, Position
from rftd.streams.log.topics import Partition

UNPLACED = -1
"""The offset of a draft not known to be stored."""


class Slice:
    """The drafts of one append for one partition, with their ids and, once known, their offsets."""

    def __init__(self, partition: Partition, deadline_s: float) -> None:
        """Begins without a draft; the append fails after `deadline_s`, on the monotonic clock."""
        self.partition = partition
        self.deadline_s = deadline_s
        self.drafts: list[Draft] = []
        self.keys: list[bytes] = []
        self.offsets: list[int] = []
        self.next = 0
        """Lowest index of a draft without an offset, as of the last `settle`."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A cancelled append leaves nobody to take its error.
        self.done.add_done_callback(looked_at)

    def add(self, draft: Draft, key: bytes) -> int:
        """Adds a draft with its id, and returns its index in the slice."""
        self.drafts.append(draft)
        self.keys.append(key)
        self.offsets.append(UNPLACED)
        return len(self.drafts) - 1

    def position(self, index: int) -> Position:
        """Returns the position of the draft at `index`, whose offset is known."""
        return Position(self.partition, self.offsets[index])

    def place(self, index: int, offset: int) -> None:
        """Records the offset of the draft at `index`."""
        self.offsets[index] = offset

    def settle(self) -> bool:
        """Completes the append (`done`) and returns True if every draft has an offset; otherwise returns False."""
        while self.next < len(self.offsets) and self.offsets[self.next] != UNPLACED:
            self.next += 1
        if self.next < len(self.offsets):
            return False
        if not self.done.done():
            self.done.set_result(None)
        return True

    def fail(self, error: BaseException) -> None:
        """Fails the append with an error, unless it has ended already."""
        if not self.done.done():
            self.done.set_exception(error)


def looked_at(future: asyncio.Future[Any]) -> None:
    """Marks a future's error as retrieved, so that asyncio logs no warning if the waiter has been cancelled."""
    if not future.cancelled():
        future.exception()


Part = tuple[Slice, int]
"""A draft, as its slice and its index there."""


class Filling:
    """A batch being filled for one request of `producer`, with drafts already encoded."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        """Begins an empty batch."""
        self.producer = producer
        self.batch = producer.create_batch()
        self.parts: list[Part] = []
        self.last_sum = b""
        """Digest of the last record added."""
        self.full = False

    def add(self, slice_: Slice, index: int, now_ms: int) -> bool:
        """Adds a draft; False if the batch is full. A batch takes at least one draft, of any size."""
        draft = slice_.drafts[index]
        digest = sum_of(draft.head, draft.value)
        subject, headers = headers_of(draft, slice_.keys[index], digest)
        if self.batch.append(timestamp=now_ms, key=subject, value=draft.value, headers=headers) is None:
            self.full = True
            return False
        self.parts.append((slice_, index))
        self.last_sum = digest
        return True


BATCH_SIZE_BYTES: Final = 512 * 1024
"""Size from which a batch counts as full; a larger record is a batch by itself."""
REQUEST_SIZE_BYTES: Final = 6 * limits.MIB
"""Maximum size of a request of a producer."""
FLUSH_TIMEOUT_S: Final = 5.0
"""Time limit in seconds for each of a producer's start, the batches in flight at its stop, and the close of its
connections.
"""
_logger = logging.getLogger("rftd.kafka")
"""Logger of the Kafka backend."""


class Producers:
    """The process's current Kafka producer, replaced after each append with an unknown outcome.

    The producer's session with the broker makes retries inside aiokafka exactly-once. No transactions and no
    transactional id: owners of roles are fenced by records of the log, alike on every backend, and a broker fencing a
    producer by id would only stop a single one of several processes, all allowed to write.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Begins without a producer."""
        self._settings = settings
        self._turn = asyncio.Lock()
        self._current: AIOKafkaProducer | None = None

    async def current(self) -> AIOKafkaProducer:
        """Returns a started producer. Raises the errors of `rftd.streams.kafka.connect`."""
        async with self._turn:
            if self._current is None:
                producer = AIOKafkaProducer(
                    enable_idempotence=True,  # sequence numbers: the retry of a landed batch is not stored again
                    acks="all",  # of the replicas in sync; min.insync.replicas excludes the leader alone
                    compression_type=self._settings.codec,
                    max_batch_size=BATCH_SIZE_BYTES,
                    max_request_size=REQUEST_SIZE_BYTES,
                    **arguments(self._settings),
                )
                try:
                    async with asyncio.timeout(FLUSH_TIMEOUT_S):
                        await producer.start()
                except (kafka.KafkaError, OSError, TimeoutError) as error:
                    await _abandon(producer)
                    raise translate(error, self._settings) from error
                except BaseException:
                    await _abandon(producer)
                    raise
                self._current = producer
            return self._current

    async def retire(self, producer: AIOKafkaProducer) -> None:
        """Closes a producer after an unknown outcome, because its sequence numbers are of no use any more.

        Batches of other partitions in flight with it fail, and their outcome is found out by reading back.
        """
        async with self._turn:
            if self._current is producer:  # several lanes share it, and each failing one asks for this
                self._current = None
                await _abandon(producer)

    async def stop(self) -> None:
        """Sends the batches in flight, for at most `FLUSH_TIMEOUT_S` seconds, and disconnects."""
        async with self._turn:
            producer = self._current
            self._current = None
            if producer is not None:
                with suppress(kafka.KafkaError, OSError, TimeoutError):
                    async with asyncio.timeout(FLUSH_TIMEOUT_S):
                        await producer.flush()
                await _abandon(producer)


async def _abandon(producer: Any) -> None:
    """Closes without flushing: `stop` would wait for an absent broker.

    The connections go first: after the search for its records, no request of this producer can land, except one already
    received by the broker. Its batches are failed last: aiokafka's sender stumbles over a batch failed while in flight.
    """
    producer._closed = True
    with suppress(kafka.KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            await producer.client.close()
    sender = producer._sender
    accumulator = producer._message_accumulator
    if (task := sender.sender_task) is not None:
        task.remove_done_callback(sender._fail_all)  # it would fail the transaction, too, and there is none
        task.cancel()
        await asyncio.wait([task], timeout=FLUSH_TIMEOUT_S)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            _logger.debug("a producer that was given up ended with %r", error)
    accumulator._pending_batches = _Pending(accumulator._pending_batches)
    accumulator.fail_all(kafka.ProducerClosed())


class _Pending(set[Any]):
    """aiokafka's set of batches in flight; a batch put back for a retry is removed twice."""

    def remove(self, element: Any) -> None:
        """Removes a batch, if it is there."""
        self.discard(element)
