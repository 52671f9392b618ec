"""`SpanExporter`: exports a process's spans through a bounded queue, emptied by a thread.

Callers are never blocked: spans without room, or without a receiver, are dropped and counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from rftd.ops.logs import Logger
from rftd.ops.tracing.tracer import TraceSpan

CAPACITY_SPANS: Final = 8192
"""Spans of a full queue."""
BATCH_SPANS: Final = 512
"""Spans of one export."""
INTERVAL_S: Final = 1.0
"""Maximum seconds that a span waits for its batch."""
FLUSH_S: Final = 2.0
"""Maximum seconds to wait for remaining spans at the end of a process."""

Send: TypeAlias = Callable[[Sequence[TraceSpan]], bool]
"""Sends a batch; False if it did not arrive. May block up to its own time-out, and may raise."""


class SpanExporter:
    """Exports spans in the background, in batches; implements `SpanSink`. `close` ends the thread."""

    def __init__(
        self,
        connect: Callable[[], Send],
        logger: Logger,
        *,
        capacity: int = CAPACITY_SPANS,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """`connect` returns the send function; run on the exporter's thread, because imports may be slow."""
        self._connect = connect
        self._logger = logger
        self._capacity = capacity
        self._interval_s = interval_s
        self._waiting: deque[TraceSpan] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._failing = False
        """True after the receiver did not accept the newest batch."""
        self._counting = threading.Lock()
        self._dropped = 0
        self._reported = 0
        """The number of drops at the last report."""
        # A daemon thread: an unresponsive receiver must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    @property
    def dropped_total(self) -> int:
        """Number of spans that never arrived: the queue was full, or the receiver away."""
        return self._dropped

    def put(self, span: TraceSpan) -> None:
        """Queues a span; drops the span if the queue is full."""
        if len(self._waiting) >= self._capacity or self._closing:
            self._drop(1)
            return
        self._waiting.append(span)
        if len(self._waiting) >= BATCH_SPANS:
            self._wake.set()

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Sends remaining spans, as far as possible within `timeout_s`; blocks for no longer.

        There is no wait for a receiver that rejected the previous batch.
        """
        self._closing = True
        self._wake.set()
        if not self._failing:
            self._thread.join(timeout_s)
        remaining = len(self._waiting)
        self._waiting.clear()
        self._drop(remaining)

    def _run(self) -> None:
        """Sends batches until `close`; the body of the exporter's thread."""
        send: Send | None = None
        while not self._closing or self._waiting:
            if not self._closing and len(self._waiting) < BATCH_SPANS:
                self._wake.wait(self._interval_s)
            self._wake.clear()
            if not (batch := self._batch()):
                continue
            try:
                send = send or self._connect()
                arrived = send(batch)
            except Exception as error:  # of a library: no error of a span is worth a thread's end
                self._logger.warning("traces.failed", reason=type(error).__name__)
                arrived = False
            self._failing = not arrived
            if not arrived:
                self._drop(len(batch))

    def _batch(self) -> list[TraceSpan]:
        """Returns the next spans, in the order of ending."""
        batch: list[TraceSpan] = []
        try:
            while len(batch) < BATCH_SPANS:
                batch.append(self._waiting.popleft())
        except IndexError:  # not checked before: `close` may clear the queue meanwhile
            pass
        return batch

    def _drop(self, count: int) -> None:
        """Counts dropped spans, and logs whenever the number has doubled."""
        if not count:
            return
        with self._counting:
            self._dropped += count
            # At the first drop, and whenever the number has doubled: a receiver may be away for days.
            report = self._dropped >= 2 * self._reported
            if report:
                self._reported = self._dropped
        if report:
            self._logger.warning("traces.dropped", spans=self._dropped)
