"""`Unit`: an explorer without a model; and the unfinished groups on all units."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from rftd.streams.events.task import Member


@dataclass(slots=True)
class SimulatedGroup:
    """An unfinished group with its finished members."""

    number: int
    """Number of the group in the stage, from 0."""
    repeat_times: int
    """Number of rollouts of the group."""
    min_version: int
    """Oldest weight version with which its rollouts may begin."""
    pinned: bool
    """True: the rollouts run on exactly `min_version`."""
    members: list[Member] = field(default_factory=list)
    """Finished rollouts of the group."""


@dataclass(slots=True)
class Unit:
    """An explorer without a model: slots, a queue of rollouts, and a weight version."""

    credits: int
    """Number of rollouts the unit can still take: free slots and one group more, against running dry."""
    free: int
    """Slots without a rollout."""
    version: int = 0
    """Weight version loaded by the unit."""
    ready_s: float = 0.0
    """End of the standstill for loading weights."""
    stood_still_s: float = 0.0
    """Total seconds of standstill, up to `ready_s`."""
    draining: bool = False
    """True while no rollout may begin, until the last one has ended and the unit loads the newest weights."""
    queue: deque[tuple[SimulatedGroup, int]] = field(default_factory=deque)
    """Rollouts (group, index) given to the unit and not begun."""
    running: int = 0
    """Number of running rollouts."""

    def may_begin(self, group: SimulatedGroup) -> bool:
        """True if a rollout of the group fits the unit's weights now."""
        if self.draining:
            return False
        return self.version == group.min_version if group.pinned else self.version >= group.min_version

    def stand_still(self, now_s: float, pause_s: float) -> None:
        """Delays running rollouts, and those begun meanwhile, by `pause_s` seconds, for loading weights."""
        began_s = max(now_s, self.ready_s)
        self.ready_s = began_s + pause_s
        self.stood_still_s += pause_s


class Flights:
    """Unfinished groups, counted by the oldest weights with which one of their rollouts may have begun."""

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}
        self._counts: Counter[int] = Counter()

    def lease(self, group: SimulatedGroup, version: int) -> None:
        """Records rollouts of the group leased to a unit with `version`; they may begin with this or newer weights."""
        oldest = max(group.min_version, version)
        former = self._versions.get(group.number)
        if former is None or oldest < former:
            self._forget(former)
            self._versions[group.number] = oldest
            self._counts[oldest] += 1

    def land(self, group: SimulatedGroup) -> None:
        """Removes a finished group from the counts."""
        self._forget(self._versions.pop(group.number))

    @property
    def oldest_version(self) -> int | None:
        """Oldest version of an unfinished group; None without groups."""
        return min(self._counts, default=None)

    def _forget(self, version: int | None) -> None:
        """Removes one group under way with this version from the counts."""
        if version is not None:
            self._counts[version] -= 1
            if not self._counts[version]:
                del self._counts[version]
