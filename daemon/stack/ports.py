"""Ports that are chosen once and kept in a folder, so that a restarted server is found where it was."""

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
_TRIES: Final = 200
# Below the ports that the kernel gives to outgoing connections (from 32768 on Linux): while a server is down, such a
# connection could take its port, or a client that retries on loopback could even connect to itself.
_FIRST: Final = 10_240
_LAST: Final = 32_000


def kept_ports(path: Path, wanted: Mapping[str, int], *, running: bool) -> dict[str, int]:
    """A port for each name: the one asked for, else the one kept in `path`, else a free one; all are kept there.

    Raises ConflictError if the server is `running` and another port than its own is asked for.
    """
    kept = json_decoder(dict[str, int]).decode(path.read_bytes()) if path.exists() else {}
    chosen: dict[str, int] = {}
    for name, port in wanted.items():
        if running and port and port != kept.get(name):
            raise ConflictError(
                f"it runs already, on port {kept.get(name)} and not {port}",
                where=str(path.parent),
                fix="rftd stack down, then again with the new port",
            )
        chosen[name] = port or kept.get(name) or _free_port({*chosen.values(), *wanted.values(), *kept.values()})
    if chosen != kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written whole or not at all: a cut file would give a running server another port than the one it listens on.
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode({**kept, **chosen}))
        temporary.replace(path)
    return chosen


def refuse_used(port: int, server: str) -> None:
    """Raises ConflictError if a program already listens on `port` of this machine."""
    if not _is_free(port):
        raise ConflictError(
            f"port {port} of {LOOPBACK}, meant for {server}, is in use by another program",
            fix=f"end that program, or choose another port: rftd stack up --{server}-port PORT",
        )


def answers(port: int, *, timeout_s: float = 1.0) -> bool:
    """True if a TCP connection to `port` of this machine can be made."""
    try:
        socket.create_connection((LOOPBACK, port), timeout_s).close()
    except OSError:
        return False
    return True


def clients_of(port: int) -> int:
    """The number of TCP connections to `port` of this machine; 0 where the system does not tell."""
    try:
        connections = psutil.net_connections("tcp")  # Java's are of IPv6, also on 127.0.0.1
    except psutil.Error:
        return 0
    return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr[1:] == (port,) for each in connections)


def _free_port(taken: set[int]) -> int:
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if port not in taken and _is_free(port):
            return port
    raise ConflictError(f"no free port between {_FIRST} and {_LAST}", fix="choose ports yourself")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Without it a port would count as taken for minutes after a server left it, while its connections are in
        # TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
