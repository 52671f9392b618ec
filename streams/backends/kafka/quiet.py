"""aiokafka's log lines as ours: one warning per kind of trouble and minute, without tracebacks.

While a broker is away its clients would write an error with a traceback several times a second.
"""

from __future__ import annotations

import logging
import time
from typing import Final

EVERY_S: Final = 30.0
_KINDS_MAX: Final = 256
_logger = logging.getLogger("rftd.kafka")


class Quiet(logging.Handler):
    """Hands on warnings and errors at level warning, each message template once in `EVERY_S` seconds."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last_s: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s.get(str(record.msg), -EVERY_S) < EVERY_S:
            return
        if len(self._last_s) > _KINDS_MAX:
            self._last_s.clear()
        self._last_s[str(record.msg)] = now_s
        _logger.warning("%s", record.getMessage())


def quiet() -> None:
    """Installs the handler for aiokafka's loggers; idempotent."""
    logger = logging.getLogger("aiokafka")
    if not any(isinstance(handler, Quiet) for handler in logger.handlers):
        logger.addHandler(Quiet())
        logger.propagate = False
        logger.setLevel(logging.WARNING)
