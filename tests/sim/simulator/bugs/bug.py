"""`Bug`: one way to break the product, and the oracle that has to notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

from simulator.scenario import Mode


@dataclass(frozen=True)
class Bug:
    """One way to break the product."""

    name: str
    found_by: str
    """How a failure that it causes begins."""
    plant: Callable[[], Any]
    """A context manager: the bug is there inside of it."""
    mode: Mode = "swarm"
    within_seeds: int = 60


def instead(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
    """Plants what `make` makes of the original."""
    # At import, so that collecting the tests already tells of a name that has moved.
    getattr(owner, name)
    return lambda: mock.patch.object(owner, name, make(getattr(owner, name)))
