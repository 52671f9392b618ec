"""NeMo-RL's ready_first (algorithms.md part 3): a gate at dispatch, and then whatever is ready first is trained.

Batches' worth of groups may be given out up to `max_staleness` (one at least) ahead of the steps that are done. Nothing
is ever retired as stale, so no rollout is wasted, and the slowest ones may be older than the bound.
"""

from __future__ import annotations

from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.policies.policy import PolicyView


class ReadyFirst(Paced):
    """A gate at dispatch, and no sweep."""

    def most_supply(self, view: PolicyView) -> int:
        return (view.steps_done + max(1, self.bound_versions)) * view.batch_size
