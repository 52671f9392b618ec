"""Groups whose workers died: each is leased to an explorer of its own, so that the next death is attributable.

When a worker dies, every group leased to the worker has a loss; one of the groups may be the cause, or none. The death
is no attempt. A group with `limits.LOSSES_BEFORE_ALONE` losses is leased alone: the explorer is given nothing else, and
while draining nothing at all. A death during a lease alone is an attempt of the group.
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
    """True if workers died often enough while running the group to lease it only to an explorer without other work."""
    return group.losses_alone > 0 or group.losses >= limits.LOSSES_BEFORE_ALONE


class Isolation:
    """Explorers reserved for suspect groups: at most half of all explorers, at least one if a suspect waits."""

    def __init__(self, state: RunState, stage: StageSpec, explorers: list[WorkerStarted]) -> None:
        """Assigns `explorers` to suspect groups and to other work, for the present state."""
        busy = set(state.groups.alone.values())
        suspects = [
            group for group in loose_groups(state) if not group.leases and is_suspect(group) and leasable(stage, group)
        ]
        self.suspects = len(suspects) + len(state.groups.alone)
        """Suspect groups with a lease alone, or waiting for one."""
        self.kept: list[WorkerStarted] = []
        """Explorers reserved for suspect groups, idle or finishing other work."""
        self.others = explorers
        """Explorers for all other work."""
        self.ready: list[tuple[WorkerStarted, Group]] = []
        """Pairs of an idle reserved explorer and a suspect group to be leased to it now."""
        self.waiting = len(suspects)
        """Suspect groups without an idle reserved explorer."""
        if not self.suspects:
            return
        load = Counter(lease.worker for lease in state.groups.leases.values())
        load.update(lease.worker for evaluation in state.evals.open.values() for lease in evaluation.leases.values())
        # The least loaded explorer: no more work arrives there, so the load of kept explorers only falls.
        free = sorted(
            (worker for worker in explorers if worker.worker not in busy),
            key=lambda worker: (load[worker.worker], worker.slot, worker.worker),
        )
        alone = len(explorers) - len(free)
        # Half of the explorers continue with everything else: a single task that kills its workers must not stop the
        # experiment.
        room = max(1, len(explorers) // 2) - alone
        self.kept = free[: max(0, min(room, len(suspects)))]
        apart = busy | {worker.worker for worker in self.kept}
        self.others = [worker for worker in explorers if worker.worker not in apart]
        idle = (worker for worker in self.kept if not load[worker.worker])
        self.ready = list(zip(idle, suspects, strict=False))
        self.waiting -= len(self.ready)
