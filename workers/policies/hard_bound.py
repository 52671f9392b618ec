"""Admission by capacity (AReaL, algorithms.md part 3) and a sweep at consumption (prime-rl): a hard bound.

A group may start while what is trained, waiting and under way stays within
    (bound + steps done + 1) * batch size   and   (inflight batches + steps planned) * batch size
experiences; what fails or is retired leaves the count, so nothing is lost on recovery. Batch n takes the oldest closed
groups first, and only experiences whose staleness (n - 1) - oldest version is within the bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final
from uuid import UUID

from rftd.streams.folds.ledger import Waiting
from rftd.streams.spec import PolicySpec
from rftd.workers.policies.policy import PolicyView

_queue_order: Final = attrgetter("queue_order")


class HardBound:
    """No trained experience is staler than `max_staleness_versions`."""

    def __init__(self, spec: PolicySpec) -> None:
        self._bound = spec.max_staleness_versions
        self._inflight_batches = spec.max_inflight_batches

    def admit(self, view: PolicyView) -> int:
        done = view.version - view.first_version
        ahead = min(self._bound + done + 1, view.planned_steps + self._inflight_batches, view.total_steps)
        supply = view.planned_experiences + len(view.waiting) + view.inflight_rollouts
        return max(0, -((supply - ahead * view.train_batch_size) // view.repeat_times))

    def select(self, view: PolicyView, size: int) -> Sequence[Waiting]:
        oldest = self._oldest_allowed(view)
        fresh: Iterable[Waiting] = view.waiting
        if view.oldest_waiting is None or view.oldest_waiting < oldest:
            fresh = (entry for entry in view.waiting if entry.member.oldest_version >= oldest)
        # Groups close in order, so this is one pass over what is sorted but for priorities.
        return sorted(fresh, key=_queue_order)[:size]

    def evict(self, view: PolicyView) -> Sequence[UUID]:
        oldest = self._oldest_allowed(view)
        if view.oldest_waiting is None or view.oldest_waiting >= oldest:
            return ()
        return [entry.member.experience for entry in view.waiting if entry.member.oldest_version < oldest]

    def _oldest_allowed(self, view: PolicyView) -> int:
        """Staleness of the next batch's items is its step - 1 - their oldest version."""
        return view.first_version + view.planned_steps - self._bound
