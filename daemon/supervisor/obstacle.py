"""`Obstacle`: what an experiment pauses for by itself, until it is put right."""

from __future__ import annotations

from typing import Final

import msgspec

DISK_FULL: Final = "disk_full"
DISK_BUDGET: Final = "disk_budget"
PART_MISSING: Final = "part_missing"
"""Something of a third party that it names is not installed where the workers start."""


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """Why it must not go on, and what helps; it goes on without being asked once this is gone."""

    cause: str
    """One of the names above."""
    reason: str
    fix: str
