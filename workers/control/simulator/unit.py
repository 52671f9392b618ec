"""One rollout unit: an explorer without a model."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rftd.streams.events.task import Member


@dataclass(slots=True)
class SimulatedGroup:
    """A group under way."""

    number: int
    repeat_times: int
    min_version: int
    pinned: bool
    """If so, its rollouts run on exactly `min_version`."""
    members: list[Member] = field(default_factory=list)


@dataclass(slots=True)
class Unit:
    """Its slots, what waits for them, and the weights that it has."""

    credits: int
    """Rollouts that it can still be given: its free slots and one group more, so that it never runs dry."""
    free: int
    """Slots without a rollout."""
    version: int = 0
    ready_s: float = 0.0
    """It stands still until then, for weights are being taken."""
    stood_still_s: float = 0.0
    """How long it ever did, up to `ready_s`."""
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
        """All that runs here, and what begins meanwhile, ends that much later."""
        began_s = max(now_s, self.ready_s)
        self.ready_s = began_s + pause_s
        self.stood_still_s += pause_s
