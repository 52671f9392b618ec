"""Ports chosen once and stored in a folder, so that a restarted server keeps its address."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import psutil

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import ConflictError

LOOPBACK: Final = "127.0.0.1"
"""Address on which the servers listen."""
_TRIES: Final = 200
"""Maximum number of ports tried."""
# Below the ports assigned by the kernel to outgoing connections (from 32768 on Linux): while a server is down, an
# outgoing connection could take its port, or a client retrying on loopback could even connect to itself.
_FIRST: Final = 10_240
"""Lowest port chosen."""
_LAST: Final = 32_000
"""Ports chosen are below this number, and so below the range that Linux gives to outgoing connections."""


def kept_ports(path: Path, requested: Mapping[str, int], *, running: bool) -> dict[str, int]:
    """Returns a port for each name: the requested, otherwise the stored, otherwise a free one; all are stored in
    `path`.

    Raises ConflictError if the server is `running` and a different port is requested.
    """
    stored = json_decoder(dict[str, int]).decode(path.read_bytes()) if path.exists() else {}
    assigned: dict[str, int] = {}
    for name, port in requested.items():
        if running and port and port != stored.get(name):
            raise ConflictError(
                f"it runs already, on port {stored.get(name)} and not {port}",
                where=str(path.parent),
                fix="rftd stack down, then again with the new port",
            )
        assigned[name] = (
            port or stored.get(name) or _free_port({*assigned.values(), *requested.values(), *stored.values()})
        )
    if assigned != stored:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written atomically: a truncated file would assign a running server another port than the one in use.
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode({**stored, **assigned}))
        temporary.replace(path)
    return assigned


def refuse_used(port: int, server: str) -> None:
    """Raises ConflictError if a program already listens on `port` of this machine."""
    if not _is_free(port):
        raise ConflictError(
            f"port {port} of {LOOPBACK}, meant for {server}, is in use by another program",
            fix=f"end that program, or choose another port: rftd stack up --{server}-port PORT",
        )


def answers(port: int, *, timeout_s: float = 1.0) -> bool:
    """True if a TCP connection to `port` of the local machine succeeds."""
    try:
        socket.create_connection((LOOPBACK, port), timeout_s).close()
    except OSError:
        return False
    return True


def clients_of(port: int) -> int:
    """Returns the number of TCP connections to local port `port`; 0 if unknown to the system."""
    try:
        connections = psutil.net_connections("tcp")  # Java's connections are IPv6, also on 127.0.0.1
    except psutil.Error:
        return 0
    return sum(
        connection.status == psutil.CONN_ESTABLISHED and connection.laddr[1:] == (port,) for connection in connections
    )


def _free_port(reserved: set[int]) -> int:
    """Returns a random free port that is not in `reserved`. Raises ConflictError if none is found."""
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if port not in reserved and _is_free(port):
            return port
    raise ConflictError(f"no free port between {_FIRST} and {_LAST}", fix="choose ports yourself")


def _is_free(port: int) -> bool:
    """True if a server could listen on the port now."""
    with socket.socket() as probe:
        # Otherwise a port would count as used for minutes after a server stopped, while connections are in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
