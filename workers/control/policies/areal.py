"""AReaL's capacity (arXiv 2505.24298, algorithms.md part 3): staleness is paced by admission alone.

    capacity = min(max_concurrent - running, (bound + version + 1) * batch - (accepted + running))

What was rejected leaves `running` without being accepted, and after a recovery accepted is what was trained and waits:
both are folds here. It bounds how many experiences run ahead, not how old each of them is: a slow rollout may be older.
"""

from __future__ import annotations

import msgspec

from rftd.streams.spec import PolicySpec
from rftd.workers.control.policies.paced import Paced, read_args
from rftd.workers.control.policies.policy import PolicyView


class ArealArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `areal`."""

    max_concurrent: int = 0
    """Rollouts under way at most; 0 = as many as explorers have places."""


class Areal(Paced):
    """Admission by capacity, and no sweep."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._max_concurrent = read_args(spec, ArealArgs).max_concurrent

    def most_supply(self, view: PolicyView) -> int:
        most = (self.bound_versions + view.steps_done + 1) * view.batch_size
        if self._max_concurrent:
            most = min(most, view.supply - view.inflight_rollouts + self._max_concurrent)
        return most
