"""Connections from a network namespace to the model's endpoint on the loopback outside."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

# As mypy reads it; the module typing takes longer to import than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

CONNECTIONS: Final = 128
"""Maximum connections forwarded at once."""


def copy(source: socket.socket, target: socket.socket, ended: Callable[[], None]) -> None:
    """Copies bytes from one connection to another until either ends."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    ended()


def forward(listener: socket.socket, port: int) -> None:
    """Connects each caller within the namespace to the same port outside."""
    places = threading.Semaphore(CONNECTIONS)
    while True:
        places.acquire()
        try:
            inner, _ = listener.accept()
        except OSError:
            return
        try:
            outer = socket.create_connection(("127.0.0.1", port), 10)
            outer.settimeout(None)
        except OSError:
            inner.close()
            places.release()
            continue
        running = [2]

        def ended(pair: tuple[socket.socket, socket.socket] = (inner, outer), running: list[int] = running) -> None:
            running[0] -= 1
            if running[0] == 0:
                for connection in pair:
                    connection.close()
                places.release()

        for pair in ((inner, outer), (outer, inner)):
            threading.Thread(target=copy, args=(*pair, ended), daemon=True).start()


def forward_ports(listeners: dict[int, int]) -> None:
    """Forwards each port, on threads: `listeners` has the descriptor of the socket listening within the namespace."""
    for port, descriptor in listeners.items():
        threading.Thread(target=forward, args=(socket.socket(fileno=descriptor), port), daemon=True).start()
