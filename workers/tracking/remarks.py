"""`Remarks`: the remarks of each run, for services that show a single text."""

from __future__ import annotations

from typing import Final

from rftd.workers.tracking.point import Point
from rftd.workers.tracking.tracker import Kept

_MOST: Final = 200
"""Maximum number of remarks per run."""
_KEY: Final = "remarks"
"""Name of the remarks in a tracker's state."""


class Remarks:
    """The newest remarks of each run, in order, as part of a tracker's saved state."""

    def __init__(self, kept: Kept | None = None) -> None:
        """Continues from a tracker's state; without one, begins without remarks."""
        self._lines: dict[str, list[str]] = {
            role: list(lines) for role, lines in ((kept or {}).get(_KEY) or {}).items()
        }
        """Remarks of each role's run, in order."""

    def add(self, role: str, point: Point) -> list[str]:
        """Adds a remark; returns all remarks of the run, the new remark last."""
        lines = self._lines.setdefault(role, [])
        lines.append(f"step {point.step}: {point.remark}")
        del lines[:-_MOST]
        return lines

    def kept(self) -> Kept:
        """Returns the state to be saved by the tracker, for a later `Remarks`."""
        return {_KEY: {role: list(lines) for role, lines in self._lines.items()}}
