"""Rollout units, explorers without a model, and the groups under way on them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from rftd.streams.events.task import Member


@dataclass(slots=True)
class SimulatedGroup:
    """A group under way."""

    number: int
    repeat_times: int
    min_version: int
    pinned: bool
    """True: its rollouts run on exactly `min_version`."""
    members: list[Member] = field(default_factory=list)


@dataclass(slots=True)
class Unit:
    """An explorer without a model: its slots, what waits for them, and the weights that it has."""

    credits: int
    """Rollouts that it can still be given: its free slots and one group more, so that it never runs dry."""
    free: int
    """Slots without a rollout."""
    version: int = 0
    ready_s: float = 0.0
    """It stands still until then, for weights are being taken."""
    stood_still_s: float = 0.0
    """Seconds that it ever stood still, up to `ready_s`."""
    draining: bool = False
    """It begins nothing until its last rollout has ended; then it takes the newest weights."""
    queue: deque[tuple[SimulatedGroup, int]] = field(default_factory=deque)
    """Rollouts that were given to it and have not begun, by group and index."""
    running: int = 0

    def may_begin(self, group: SimulatedGroup) -> bool:
        """True if a rollout of the group fits the weights that it has now."""
        if self.draining:
            return False
        return self.version == group.min_version if group.pinned else self.version >= group.min_version

    def stand_still(self, now_s: float, pause_s: float) -> None:
        """Delays all that runs here, and what begins meanwhile, by `pause_s`."""
        began_s = max(now_s, self.ready_s)
        self.ready_s = began_s + pause_s
        self.stood_still_s += pause_s


class Flights:
    """The groups under way, by the oldest weights that each may have begun with."""

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
        """Forgets a group whose last rollout has ended."""
        self._forget(self._versions.pop(group.number))

    @property
    def oldest_version(self) -> int | None:
        """The oldest version of any group under way; None if none is."""
        return min(self._counts, default=None)

    def _forget(self, version: int | None) -> None:
        if version is not None:
            self._counts[version] -= 1
            if not self._counts[version]:
                del self._counts[version]
