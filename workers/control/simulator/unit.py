"""Rollout units (explorers without a model), and the groups under way on them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from rftd.streams.events.task import Member


@dataclass(slots=True)
class SimulatedGroup:
    """A group under way, with its finished members."""

    number: int
    repeat_times: int
    min_version: int
    pinned: bool
    """True: the rollouts run on exactly `min_version`."""
    members: list[Member] = field(default_factory=list)


@dataclass(slots=True)
class Unit:
    """An explorer without a model: slots, a queue of rollouts, and a weight version."""

    credits: int
    """Number of rollouts the unit can still take: free slots and one group more, against running dry."""
    free: int
    """Slots without a rollout."""
    version: int = 0
    ready_s: float = 0.0
    """End of the standstill for loading weights."""
    stood_still_s: float = 0.0
    """Total seconds of standstill, up to `ready_s`."""
    draining: bool = False
    """True: no rollout begins until the last one has ended; then the unit loads the newest weights."""
    queue: deque[tuple[SimulatedGroup, int]] = field(default_factory=deque)
    """Rollouts given to the unit and not begun, by group and index."""
    running: int = 0

    def may_begin(self, group: SimulatedGroup) -> bool:
        """True if a rollout of the group fits the unit's weights now."""
        if self.draining:
            return False
        return self.version == group.min_version if group.pinned else self.version >= group.min_version

    def stand_still(self, now_s: float, pause_s: float) -> None:
        """Delays all running rollouts, and the ones begun meanwhile, by `pause_s`."""
        began_s = max(now_s, self.ready_s)
        self.ready_s = began_s + pause_s
        self.stood_still_s += pause_s


class Flights:
    """Groups under way, by the oldest weights with which a rollout of each may have begun."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        self._counts: Counter[int] = Counter()

    def lease(self, group: SimulatedGroup, version: int) -> None:
        """Records a part of the group leased to a unit with these weights; rollouts may begin with newer ones."""
        oldest = max(group.min_version, version)
        former = self._versions.get(group.number)
        if former is None or oldest < former:
            self._forget(former)
            self._versions[group.number] = oldest
            self._counts[oldest] += 1

    def land(self, group: SimulatedGroup) -> None:
        """Removes a group after its last rollout has ended."""
        self._forget(self._versions.pop(group.number))

    @property
    def oldest_version(self) -> int | None:
        """Returns the oldest version of any group under way; None without groups."""
        return min(self._counts, default=None)

    def _forget(self, version: int | None) -> None:
        """Removes one group under way with this version from the counts."""
        if version is not None:
            self._counts[version] -= 1
            if not self._counts[version]:
                del self._counts[version]
