"""The answer of a command line, and the daemon that it talked to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from synthetic.daemon.daemon_parts import DaemonParts


@dataclass(frozen=True)
class Served:
    """One daemon that answers."""

    url: str
    parts: DaemonParts
    loop: asyncio.AbstractEventLoop
    """Runs the daemon, in a thread of its own."""


@dataclass(frozen=True)
class Said:
    """The exit status and both outputs of one command line."""

    status: int
    out: str
    err: str


Rftd = Callable[..., Said]
