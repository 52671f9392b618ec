"""A batch that is being made for one partition."""

from __future__ import annotations

from aiokafka import AIOKafkaProducer

from rftd.streams.backends.kafka.headers import headers_of, sum_of
from rftd.streams.backends.kafka.pending import Slice

Part = tuple[Slice, int]
"""One draft of a slice, by its index."""


class Filling:
    """Drafts that one request will carry, in order, already encoded for `producer`."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self.producer = producer
        self.batch = producer.create_batch()
        self.parts: list[Part] = []
        self.last_sum = b""
        """The digest of the last record."""
        self.full = False

    def add(self, slice_: Slice, index: int, now_ms: int) -> bool:
        """False if the batch has no room for this draft; a batch takes at least one."""
        draft = slice_.drafts[index]
        digest = sum_of(draft.head, draft.value)
        subject, headers = headers_of(draft, slice_.keys[index], digest)
        if self.batch.append(timestamp=now_ms, key=subject, value=draft.value, headers=headers) is None:
            self.full = True
            return False
        self.parts.append((slice_, index))
        self.last_sum = digest
        return True
