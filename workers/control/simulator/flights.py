"""Groups under way, by the weights that the first of their rollouts began with."""

from __future__ import annotations

from collections import Counter

from rftd.workers.control.simulator.unit import SimulatedGroup


class Flights:
    """What is in the air. A group that has landed, whole, is none."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        self._counts: Counter[int] = Counter()

    def lease(self, group: SimulatedGroup, version: int) -> None:
        """A part of the group was given to a unit that has these weights; it may begin with them or newer ones."""
        held = max(group.min_version, version)
        known = self._versions.get(group.number)
        if known is None or held < known:
            self._forget(known)
            self._versions[group.number] = held
            self._counts[held] += 1

    def land(self, group: SimulatedGroup) -> None:
        """Its last rollout has ended."""
        self._forget(self._versions.pop(group.number))

    @property
    def oldest_version(self) -> int | None:
        """Of any group under way; None if none is."""
        return min(self._counts, default=None)

    def _forget(self, version: int | None) -> None:
        if version is not None:
            self._counts[version] -= 1
            if not self._counts[version]:
                del self._counts[version]
