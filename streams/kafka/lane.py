"""`Lane`: appends to one partition: one batch in flight, while the next is being filled.

queue of slices ─► batch ─► Kafka ─► places ─► acknowledgements
                     └─ outcome unknown: new producer, read the partition's end back, send only missing drafts
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka

from rftd.ops.clock import Clock, iso
from rftd.ops.errors import RftdError, UnreachableError
from rftd.streams.kafka.connect import IN_SYNC, translate
from rftd.streams.kafka.partitions import Names
from rftd.streams.kafka.producers import UNPLACED, Filling, Part, Producers, Slice, looked_at
from rftd.streams.kafka.records import IdWindow
from rftd.streams.kafka.settings import KafkaSettings
from rftd.streams.kafka.topics import BROKER_TIME, TIMESTAMP_TYPE, setting_command, settings_of
from rftd.streams.log.chain import Mark
from rftd.streams.log.topics import Partition

READ_BACK_RECORDS: Final = 2000
"""Number of newest records whose ids are read before this process's first write to a partition."""
READ_BACK_MOST_RECORDS: Final = 50_000
"""Maximum number of records read back after an unknown outcome, even if the last acknowledgement lies further back."""
SILENT_S: Final = 3.0
"""Seconds without an acknowledgement after which appends count as failing."""
RETRY_S: Final = (0.05, 0.2, 0.5, 1.0)
"""Pauses after the first, second, third and further failures of appends in a row."""
SENDER_TURNS: Final = 4
"""Turns of the event loop until aiokafka's sender has taken a batch; only then is the next one built."""
_TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
"""Kafka's errors for a batch over a limit."""


class Partitions(Protocol):
    """The methods of the log used by a lane."""

    async def end(self, partition: Partition) -> int:
        """Returns the next offset of a partition, from the cluster."""
        ...

    async def read_back(self, partition: Partition, start: int, end: int) -> IdWindow:
        """Returns the ids of the records in [start, end), as far as retained."""
        ...

    def placed(self, partition: Partition, mark: Mark, parts: list[Part]) -> None:
        """Called with drafts whose offsets are known, and the partition's new head `mark`, in the turn of their
        acknowledgement.
        """
        ...

    def failing(self, error: RftdError | None) -> None:
        """Called with the error of failing appends, and with None once they succeed again."""
        ...


class Lane:
    """The queue of appends to one partition; `run` is its task."""

    def __init__(
        self,
        partition: Partition,
        *,
        settings: KafkaSettings,
        names: Names,
        producers: Producers,
        log: Partitions,
        clock: Clock,
    ) -> None:
        """Creates an empty queue; `run` sends it."""
        self._partition = partition
        self._topic, self._number = names.kafka(partition)
        self._settings = settings
        self._producers = producers
        self._log = log
        self._clock = clock
        self._queue: deque[Slice] = deque()
        self._grown = asyncio.Event()
        self._settled = False
        self._doubtful = False
        """True if records of an unknown outcome may still appear beyond the end read back, once another record is
        written.
        """
        self._end: int | None = None
        """Offset up to which the partition is known: its end when last read back, or that of the newest batch."""
        self._known = IdWindow()
        """Ids read back from the log."""
        self._failures = 0
        self._flying: Filling | None = None
        self._next: Filling | None = None
        self._single_records = False
        """True if each batch has one record, after a broker refused a batch as too large."""

    def put(self, slice_: Slice) -> None:
        """Queues the drafts of a slice, whose `done` completes or fails later."""
        self._queue.append(slice_)
        self._prefill()
        self._grown.set()

    def find(self, key: bytes) -> int | None:
        """Returns the offset of an id that was read back; None if absent."""
        return self._known.find(key)

    @property
    def idle(self) -> bool:
        """True if no slice is queued or in flight."""
        return not self._queue

    async def run(self) -> None:
        """Sends queued drafts until cancelled."""
        while True:
            await self._grown.wait()
            self._grown.clear()
            while self._queue:
                await self._step()

    async def _step(self) -> None:
        """Sends one batch and acknowledges its drafts; after a failure, prepares the next attempt.

        Before the first batch, and after an unknown outcome, the partition's end is read back first.
        """
        producer: AIOKafkaProducer | None = None
        parts: list[Part] = []
        try:
            # Before the first batch too: a former process may have sent the same drafts and died before their
            # acknowledgement.
            if not self._settled:
                await self._settle()
            producer = await self._producers.current()
            # A batch is encoded for one producer: its sequence numbers are of no use with another.
            filling = self._next if self._next is not None and self._next.producer is producer else Filling(producer)
            self._next = None
            self._fill(filling, skip=0)
            parts = filling.parts
            if not parts:
                self._finish()
                return
            offset = await self._send(filling)
        except _TOO_LARGE as error:
            await self._lost(producer)
            # The broker refuses the batch and does not name the record: each is sent alone until the large one is
            # found.
            if len(parts) == 1:
                self._refuse(parts[0][0], translate(error, self._settings))
            self._single_records = True
        except kafka.InvalidTimestampError:
            await self._lost(producer)
            await self._back_off(await refused_time(self._settings, self._topic, self._clock))
        except (kafka.KafkaError, OSError, TimeoutError, AssertionError, RftdError) as error:
            # A fenced producer answers with assertions.
            await self._lost(producer)
            await self._back_off(translate(error, self._settings))
        else:
            # The batch landed above the end read back: the records in between may be these very drafts, sent before.
            # Nothing is acknowledged until they have been read.
            if self._doubtful and offset > (self._end or 0):
                self._settle_again()
            else:
                self._place(offset, parts, filling.last_sum)

    async def _settle(self) -> None:
        """Reads the partition's end back and notes the offsets of drafts already there."""
        end = await self._log.end(self._partition)
        start = end - READ_BACK_RECORDS if self._end is None else max(self._end, end - READ_BACK_MOST_RECORDS)
        if start < end:
            self._known = await self._log.read_back(self._partition, max(0, start), end)
        for slice_ in self._queue:
            for index, key in enumerate(slice_.keys):
                if slice_.offsets[index] == UNPLACED and (known_offset := self._known.find(key)) is not None:
                    slice_.place(index, known_offset)
        self._end = end
        self._settled = True

    def _settle_again(self) -> None:
        """Makes the next step read back the batch just landed, and the records below it.

        With replicas away, a leader may keep records unreadable until the replicas are back; the drafts may then be
        there already, and the first position counts.
        """
        self._settled = self._doubtful = False
        self._flying = self._next = None
        self._failures = 0

    def _fill(self, filling: Filling, skip: int) -> None:
        """Adds the oldest drafts without an offset, after the first `skip` of them."""
        if filling.full or (self._single_records and filling.parts):
            return
        skip += len(filling.parts)
        now_ms = self._clock.now_ns() // 1_000_000
        for slice_ in self._queue:
            for index in range(slice_.next, len(slice_.drafts)):
                if slice_.offsets[index] != UNPLACED:
                    continue
                if skip > 0:
                    skip -= 1
                elif not filling.add(slice_, index, now_ms) or self._single_records:
                    return

    def _prefill(self) -> None:
        """Makes the next batch while one is in flight."""
        if self._flying is not None and not self._single_records:
            if self._next is None:
                self._next = Filling(self._flying.producer)
            self._fill(self._next, skip=len(self._flying.parts))

    async def _send(self, filling: Filling) -> int:
        """Sends a batch; returns the offset of its first record."""
        done = await filling.producer.send_batch(filling.batch, self._topic, partition=self._number)
        done.add_done_callback(looked_at)  # a cancelled lane leaves nobody to take its error
        # The sender's turn first: encoding the next batch at once would keep this one from the network.
        for _ in range(SENDER_TURNS):
            await asyncio.sleep(0)
        self._flying = filling
        self._prefill()
        silent = False
        while True:
            # `wait` leaves the future alone; `wait_for` would cancel it, and the record could land unheard.
            await asyncio.wait([done], timeout=SILENT_S)
            if done.done():
                break
            silent = True
            late = UnreachableError(
                f"no acknowledgement of {self._partition} for {SILENT_S:.0f} s",
                where=f"Kafka at {self._settings.bootstrap}",
                fix=IN_SYNC,
            )
            self._log.failing(late)
            if self._expired():
                raise late
        if done.cancelled():
            raise kafka.KafkaError("the producer was stopped")
        offset = int(done.result().offset)
        if offset < 0:  # DUPLICATE_SEQUENCE_NUMBER: the records are there, and only reading back tells their offsets
            raise kafka.KafkaError("the broker treated the batch as a repetition and does not know its offset")
        if silent:
            self._log.failing(None)
        return offset

    def _place(self, offset: int, parts: list[Part], last_sum: bytes) -> None:
        # Kafka answers with the first offset: a batch is stored as a whole, so the others follow without a gap.
        """Gives a stored batch's drafts their offsets, from `offset` on, and passes them to the log."""
        for landed_offset, (slice_, index) in enumerate(parts, start=offset):
            slice_.place(index, landed_offset)
        self._flying = None
        self._doubtful = False
        self._end = offset + len(parts)
        self._failures = 0
        self._log.placed(self._partition, Mark(self._end, last_sum), parts)
        self._finish()
        if not self._queue:
            self._single_records = False

    def _finish(self) -> None:
        """Completes the appends at the front of the queue whose drafts all have offsets, and removes them."""
        while self._queue and self._queue[0].settle():
            self._queue.popleft()

    async def _lost(self, producer: AIOKafkaProducer | None) -> None:
        """Notes an unknown outcome: the producer is replaced, and the partition's end read back before the next
        batch.
        """
        self._settled = False
        self._doubtful = True
        self._flying = self._next = None
        if producer is not None:
            await self._producers.retire(producer)

    async def _back_off(self, error: RftdError) -> None:
        """Reports a failure, refuses overdue appends, and waits before the next attempt.

        If no retry can help, all appends are refused at once.
        """
        self._log.failing(error)
        if not isinstance(error, UnreachableError):  # no retry helps: rights, a limit, a damaged partition
            for slice_ in list(self._queue):
                self._refuse(slice_, error)
            return
        now_s = self._clock.monotonic_s()
        for slice_ in [slice_ for slice_ in self._queue if now_s > slice_.deadline_s]:
            self._refuse(slice_, error)
        await asyncio.sleep(RETRY_S[min(self._failures, len(RETRY_S) - 1)])
        self._failures += 1

    def _expired(self) -> bool:
        """True if the oldest append is past its deadline."""
        return bool(self._queue) and self._clock.monotonic_s() > self._queue[0].deadline_s

    def _refuse(self, slice_: Slice, error: RftdError) -> None:
        """Ends an append with an error."""
        slice_.fail(error)
        self._queue.remove(slice_)


_ANY_MS: Final = 2**63 - 1
"""Kafka's largest time bound in milliseconds, which counts as none."""
_UNITS_MS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
"""Units of durations in Kafka's settings, the largest first."""
_AHEAD: Final = "message.timestamp.after.max.ms"
"""A topic's limit on times in the future."""
_BEHIND: Final = "message.timestamp.before.max.ms"
"""A topic's limit on times in the past."""
_EITHER: Final = "message.timestamp.difference.max.ms"  # before Kafka 3.6
"""A topic's limit on times in the past and in the future, before Kafka 3.6."""


async def refused_time(settings: KafkaSettings, topic: str, clock: Clock) -> UnreachableError:
    """Builds the error of an append refused by the broker for its time stamp; a retry helps once the cause is fixed.

    `topic` is the topic's name on the cluster; `clock` dates the records.
    """
    now_ns = clock.now_ns()
    try:
        configs = await settings_of(settings, topic)
    except RftdError:  # forbidden, or the cluster is away again: the cause is known without
        configs = {}
    return UnreachableError(
        f"Kafka refused records of {topic} because of their time: this machine's clock ({iso(now_ns)}) is"
        f" {difference(configs)}",
        where=f"Kafka at {settings.bootstrap}",
        fix="correct the wrong clock, or let the broker date the records of each topic that `rftd doctor --kafka`"
        f" names: {setting_command(topic, TIMESTAMP_TYPE, BROKER_TIME)}",
    )


def difference(configs: Mapping[str, str]) -> str:
    """Returns text about the possible difference between the broker's clock and ours, from a topic's settings."""
    either_ms = configs.get(_EITHER, str(_ANY_MS))
    ahead_ms = int(configs.get(_AHEAD, either_ms))
    behind_ms = int(configs.get(_BEHIND, either_ms))
    bounds = [f"more than {_span(ahead_ms)} ahead of the broker's"] if ahead_ms < _ANY_MS else []
    if behind_ms < _ANY_MS:
        bounds.append(f"more than {_span(behind_ms)} behind the broker's")
    return " or ".join(bounds) or "too far from the broker's"


def _span(span_ms: int) -> str:
    """Formats a span of time in the largest exact unit: `1 h`, `90 min`."""
    for unit_ms, name in _UNITS_MS:
        if span_ms and span_ms % unit_ms == 0:
            return f"{span_ms // unit_ms} {name}"
    return f"{span_ms} ms"
