"""What a command line said, and the daemon that it talked to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from synthetic.daemon.house import House


@dataclass(frozen=True)
class Served:
    """One daemon that answers."""

    url: str
    house: House


@dataclass(frozen=True)
class Said:
    """What one command line answered."""

    status: int
    out: str
    err: str


Rftd = Callable[..., Said]
