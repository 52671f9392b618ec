"""`RankNodes`: the machines of ranks beside the trainer's own, as listed by its launcher in the environment."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

import msgspec
import psutil

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import RankError
from rftd.workers.engines.ranks.messages import LOOPBACK

RANK_NODES: Final = "RFTD_RANK_NODES"
"""Environment variable set by a launcher with several machines: a `RankNodes` as JSON."""
_KEEPALIVE: Final = ((socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Options of TCP's keep-alive: seconds between probes, and number of unanswered ones."""
_KEEPALIVE_IDLE: Final = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
"""Option of the seconds before the first probe, named differently by systems."""
_UNANSWERED_MS: Final = 30_000
"""Milliseconds after which unacknowledged data ends a connection."""


class RankHostPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Address, port and key of a machine's `RankHost`."""

    address: str
    """Address of the machine."""
    port: int
    """Port of the host."""
    key: str
    """Secret required by the host."""


class RankNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of a trainer: its own first, with rank 0, and equally many ranks on each."""

    own: str = LOOPBACK
    """Address of the trainer's own machine for the other machines."""
    hosts: tuple[RankHostPlace, ...] = ()
    """The hosts on the other machines."""

    def local_ranks(self, ranks: int) -> int:
        """Returns the number of ranks on each machine. Raises RankError if the ranks do not divide evenly."""
        machines = 1 + len(self.hosts)
        if ranks % machines:
            raise RankError(
                f"{ranks} ranks cannot be spread evenly over {machines} nodes",
                field="trainer.engine_args.ranks",
                fix=f"write a multiple of {machines}, or another trainer.engine_args.nodes",
            )
        return ranks // machines

    def address_of(self, machine: int) -> str:
        """Returns the address of a machine; 0 is the trainer's own."""
        return self.own if machine == 0 else self.hosts[machine - 1].address


ONE_NODE: Final = RankNodes()
"""The trainer's own machine alone."""


def nodes_of(environ: Mapping[str, str]) -> RankNodes:
    """Returns the machines listed by the launcher; the trainer's own alone without a list."""
    text = environ.get(RANK_NODES, "")
    return json_decoder(RankNodes).decode(text) if text else ONE_NODE


def interface_of(address: str) -> str:
    """Returns the name of this machine's network interface with an address; empty without one."""
    interfaces = psutil.net_if_addrs()
    return next(
        (
            name
            for name, addresses in sorted(interfaces.items())
            if any(interface_address.address == address for interface_address in addresses)
        ),
        "",
    )


def watch_connection(connection: socket.socket) -> None:
    """Sets keepalives so that a connection to a vanished machine ends within a minute."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, setting in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, setting)
    if _KEEPALIVE_IDLE is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _KEEPALIVE_IDLE, 15)
    if (user_timeout := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        connection.setsockopt(socket.IPPROTO_TCP, user_timeout, _UNANSWERED_MS)
