"""`RankNodes`: the machines beside the trainer's own on which ranks run, as its launcher tells in the environment."""

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
"""The environment variable of a trainer whose launcher gave it several machines: a `RankNodes` as JSON."""
_KEEPALIVE: Final = ((socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_KEEPALIVE_IDLE: Final = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
_UNANSWERED_MS: Final = 30_000


class RankHostPlace(msgspec.Struct, frozen=True, kw_only=True):
    """How the `RankHost` of a machine is reached."""

    address: str
    port: int
    key: str
    """The secret that it asks for."""


class RankNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of a trainer: its own first, with rank 0, and as many ranks on each."""

    own: str = LOOPBACK
    """The address of the trainer's own machine at which the others reach it."""
    hosts: tuple[RankHostPlace, ...] = ()
    """Those of the other machines."""

    def local_ranks(self, ranks: int) -> int:
        """The number of ranks on each machine. Raises RankError if they cannot be shared out evenly."""
        machines = 1 + len(self.hosts)
        if ranks % machines:
            raise RankError(
                f"{ranks} ranks cannot be spread evenly over {machines} nodes",
                field="trainer.engine_args.ranks",
                fix=f"write a multiple of {machines}, or another trainer.engine_args.nodes",
            )
        return ranks // machines

    def address_of(self, machine: int) -> str:
        """The address of a machine, 0 being the trainer's own."""
        return self.own if machine == 0 else self.hosts[machine - 1].address


ONE_NODE: Final = RankNodes()
"""The trainer's own machine alone."""


def nodes_of(environ: Mapping[str, str]) -> RankNodes:
    """The machines that the launcher names; the trainer's own alone if it names none."""
    text = environ.get(RANK_NODES, "")
    return json_decoder(RankNodes).decode(text) if text else ONE_NODE


def interface_of(address: str) -> str:
    """The name of this machine's network interface that has an address; empty if none has."""
    found = psutil.net_if_addrs()
    return next((name for name, each in sorted(found.items()) if any(one.address == address for one in each)), "")


def watch_connection(connection: socket.socket) -> None:
    """Lets a connection to another machine end within a minute if that is gone without a word."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    if _KEEPALIVE_IDLE is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _KEEPALIVE_IDLE, 15)
    if (unanswered := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
        connection.setsockopt(socket.IPPROTO_TCP, unanswered, _UNANSWERED_MS)
