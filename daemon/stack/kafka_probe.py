"""`live_brokers`: does a broker answer, and does it know itself to be alive?"""

from __future__ import annotations

import socket
import struct
from typing import Final

from rftd.daemon.stack.ports import LOOPBACK

_METADATA: Final = 3
_VERSION: Final = 4
_TIMEOUT_S: Final = 5.0


def live_brokers(port: int) -> int:
    """How many brokers the one at `port` names to its clients; 0 if nothing answers.

    A port that accepts is not enough: a broker opens it before the controller lets it serve, and names itself after.
    """
    # Header: api key, version, correlation id, no client id. Body: no topics, create none.
    request = struct.pack(">hhihi?", _METADATA, _VERSION, 1, -1, 0, False)
    try:
        with socket.create_connection((LOOPBACK, port), _TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                head = answer.read(16)
    except OSError:
        return 0
    if len(head) < 16:
        return 0
    _length, _correlation, _throttle_ms, brokers = struct.unpack(">iiii", head)
    return int(brokers)
