"""Groups whose workers died: each is run with nothing beside it, so that the next death says which it was.

When a worker dies, every group that it held lost it; one of them may be the cause, or none. That is no attempt of any
of them. A group that lost `limits.LOSSES_BEFORE_ALONE` workers so is leased alone: an explorer is given nothing else,
and while it drains nothing at all. What dies with it then is an attempt of that group.
"""

from __future__ import annotations

from collections import Counter

from rftd.ops import limits
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.group import Group
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.closing import leasable, loose_groups


def is_suspect(group: Group) -> bool:
    """True if workers died with the group so often that it must not be leased with others."""
    return group.losses_alone > 0 or group.losses >= limits.LOSSES_BEFORE_ALONE


class Isolation:
    """The explorers that are kept free of other work: at most half of them, at least one if there is a need."""

    def __init__(self, state: RunState, stage: StageSpec, explorers: list[WorkerStarted]) -> None:
        busy = set(state.groups.alone.values())
        suspects = [
            group for group in loose_groups(state) if not group.leases and is_suspect(group) and leasable(stage, group)
        ]
        self.suspects = len(suspects) + len(state.groups.alone)
        """Groups that are or must be alone."""
        self.kept: list[WorkerStarted] = []
        """Explorers that wait for a suspect group, or drain until they can take one."""
        self.others = explorers
        """Explorers for everything else."""
        self.ready: list[tuple[WorkerStarted, Group]] = []
        """The pairs of explorer and group that can be leased alone now."""
        self.waiting = len(suspects)
        """Groups of these that nothing is given out of now."""
        if not self.suspects:
            return
        held = Counter(lease.worker for lease in state.groups.leases.values())
        held.update(lease.worker for each in state.evals.open.values() for lease in each.leases.values())
        # The least loaded: it gets nothing more, so the load of those that are kept only falls.
        free = sorted(
            (worker for worker in explorers if worker.worker not in busy),
            key=lambda worker: (held[worker.worker], worker.slot, worker.worker),
        )
        alone = len(explorers) - len(free)
        # Half of them go on with everything else: a single task that kills its workers must not stop the
        # experiment.
        most = max(1, len(explorers) // 2) - alone
        self.kept = free[: max(0, min(most, len(suspects)))]
        apart = busy | {worker.worker for worker in self.kept}
        self.others = [worker for worker in explorers if worker.worker not in apart]
        idle = (worker for worker in self.kept if not held[worker.worker])
        self.ready = list(zip(idle, suspects, strict=False))
        self.waiting -= len(self.ready)
