"""The one idempotent producer of a log: started when it is needed, replaced when an outcome is unknown."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka

from rftd.ops import limits
from rftd.streams.backends.kafka.connect import arguments, translate
from rftd.streams.backends.kafka.settings import KafkaSettings

BATCH_SIZE_BYTES: Final = 512 * 1024
REQUEST_SIZE_BYTES: Final = 6 * limits.MIB
FLUSH_TIMEOUT_S: Final = 5.0
_logger = logging.getLogger("rftd.kafka")


class Producers:
    """Hands out the current producer. Its broker session makes retries inside aiokafka exactly-once."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        self._current: AIOKafkaProducer | None = None

    async def current(self) -> AIOKafkaProducer:
        """A started producer. Raises the errors of `rftd.streams.backends.kafka.connect`."""
        async with self._turn:
            if self._current is None:
                producer = AIOKafkaProducer(
                    enable_idempotence=True,
                    acks="all",
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
        """Ends this producer: its sequence numbers are of no use once one outcome is unknown.

        What others have under way with it fails and is settled by reading back.
        """
        async with self._turn:
            if self._current is producer:
                self._current = None
                await _abandon(producer)

    async def stop(self) -> None:
        """Sends what is under way, at most for `FLUSH_TIMEOUT_S`, and disconnects."""
        async with self._turn:
            producer, self._current = self._current, None
            if producer is not None:
                with suppress(kafka.KafkaError, OSError, TimeoutError):
                    async with asyncio.timeout(FLUSH_TIMEOUT_S):
                        await producer.flush()
                await _abandon(producer)


async def _abandon(producer: Any) -> None:
    """Closes without flushing: `stop` would wait for a broker that is away.

    The connections go first, so that no request of this producer can land after its records were looked for, short
    of what the broker has received already. Its batches are failed last: aiokafka's sender stumbles over one that was
    failed while it is under way.
    """
    producer._closed = True
    with suppress(kafka.KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            await producer.client.close()
    sender, accumulator = producer._sender, producer._message_accumulator
    if (task := sender.sender_task) is not None:
        task.remove_done_callback(sender._fail_all)  # it fails the transaction, too, and there is none
        task.cancel()
        await asyncio.wait([task], timeout=FLUSH_TIMEOUT_S)
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            _logger.debug("a producer that was given up ended with %r", error)
    accumulator._pending_batches = _Pending(accumulator._pending_batches)
    accumulator.fail_all(kafka.ProducerClosed())


class _Pending(set[Any]):
    """aiokafka's batches under way; one that was put back for a retry is taken out twice."""

    def remove(self, element: Any) -> None:
        self.discard(element)
