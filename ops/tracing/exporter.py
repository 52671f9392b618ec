"""`SpanExporter`: the spans of a process on their way out, by a bounded queue and a thread that empties it.

Nobody waits for it: what finds no room, or no receiver, is dropped and counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from rftd.ops.logs import Logger
from rftd.ops.tracing.tracer import TraceSpan

CAPACITY_SPANS: Final = 8192
BATCH_SPANS: Final = 512
INTERVAL_S: Final = 1.0
"""The longest wait of a span for its batch."""
FLUSH_S: Final = 2.0
"""The longest wait at the end of a process for what is left."""

Send: TypeAlias = Callable[[Sequence[TraceSpan]], bool]
"""Sends a batch; False if it did not arrive. It may block for as long as its own time-out lasts, and may raise."""


class SpanExporter:
    """Implements `SpanSink`. `close` ends it."""

    def __init__(
        self,
        connect: Callable[[], Send],
        logger: Logger,
        *,
        capacity: int = CAPACITY_SPANS,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """`connect` gives what sends; it is called on the exporter's thread, for it may have much to import."""
        self._connect = connect
        self._logger = logger
        self._capacity = capacity
        self._interval_s = interval_s
        self._waiting: deque[TraceSpan] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._failing = False
        """True while the receiver has not taken the newest batch."""
        self._counting = threading.Lock()
        self._dropped = 0
        self._told = 0
        """The number of drops at which it said so last."""
        # A daemon: a receiver that does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    @property
    def dropped_total(self) -> int:
        """Spans that never arrived: the queue was full, or the receiver away."""
        return self._dropped

    def put(self, span: TraceSpan) -> None:
        """Takes a span; drops it if too many wait."""
        if len(self._waiting) >= self._capacity or self._closing:
            self._drop(1)
            return
        self._waiting.append(span)
        if len(self._waiting) >= BATCH_SPANS:
            self._wake.set()

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Sends what is left, as far as that succeeds within `timeout_s`; blocks for no longer.

        It waits not at all for a receiver that did not take the batch before.
        """
        self._closing = True
        self._wake.set()
        if not self._failing:
            self._thread.join(timeout_s)
        left = len(self._waiting)
        self._waiting.clear()
        self._drop(left)

    def _run(self) -> None:
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
            except Exception as error:  # of a library: whatever it is, spans are not worth a thread's end
                self._logger.warning("traces.failed", reason=type(error).__name__)
                arrived = False
            self._failing = not arrived
            if not arrived:
                self._drop(len(batch))

    def _batch(self) -> list[TraceSpan]:
        """The next spans, in the order in which they ended."""
        batch: list[TraceSpan] = []
        try:
            while len(batch) < BATCH_SPANS:
                batch.append(self._waiting.popleft())
        except IndexError:  # not looked at before: whoever closes may clear it meanwhile
            pass
        return batch

    def _drop(self, count: int) -> None:
        if not count:
            return
        with self._counting:
            self._dropped += count
            # At the first, and whenever there are twice as many: a receiver may be away for days.
            tell = self._dropped >= 2 * self._told
            if tell:
                self._told = self._dropped
        if tell:
            self._logger.warning("traces.dropped", spans=self._dropped)
