"""`Shelf`: the experiences that may be planned, in the order of the stage's policy, kept up to date with the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from rftd.streams.folds.ledger import Changes, Waiting
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec import StageSpec
from rftd.workers.policies.policy import Retirement, StalenessPolicy
from rftd.workers.policies.pool import Pool
from rftd.workers.policies.priorities import make_priority
from rftd.workers.policies.registry import make_policy


class Shelf:
    """The pool of the stage under way: a cache, made from the ledger when it is first asked for."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._stage = -1
        self._policy: StalenessPolicy | None = None
        self._pool: Pool | None = None
        self._taken: list[Waiting] = []

    def of(self, stage: StageSpec, now_ns: int) -> tuple[StalenessPolicy, Pool]:
        """Policy and pool of the stage under way, as the ledger is and the clock reads now."""
        state = self._state
        if self._policy is None or self._pool is None or self._stage != state.spine.stage:
            self._stage, self._policy = state.spine.stage, make_policy(stage.policy)
            entries = chain(state.ledger.waiting.values(), state.ledger.cooling.values())
            self._pool = Pool(self._policy.order, make_priority(stage.policy.priority), entries)
        else:
            self._pool.change(self._changes())
        self._taken, state.touched = [], {}
        self._pool.awake(now_ns)
        return self._policy, self._pool

    def fresh(self) -> Iterator[Waiting]:
        """What the pool has not taken in yet: all that waits, or what changed since it was last asked for."""
        state = self._state
        if self._pool is None or self._stage != state.spine.stage:
            yield from state.ledger.waiting.values()
        else:
            yield from (entry for entry in self._changes().values() if entry is not None)

    def _changes(self) -> Changes:
        """What the pool has not taken in yet; what it left out for a decision that nobody wrote is as it was."""
        touched, taken = self._state.touched or {}, self._taken
        left = {id: entry for entry in taken if (id := entry.member.experience) not in touched}
        return {**touched, **left} if left else touched

    def take(self, chosen: Sequence[Waiting]) -> None:
        """Leaves these out of the pool until it is asked for again: then they are what the ledger says."""
        assert self._pool is not None
        self._pool.take(chosen)
        self._taken += chosen


def by_uses(parts: Iterable[Retirement]) -> dict[tuple[str, int], list[Waiting]]:
    """The same by reason and number of uses: what one event can say."""
    found: dict[tuple[str, int], list[Waiting]] = {}
    for part in parts:
        for entry in part.entries:
            found.setdefault((part.reason, entry.uses), []).append(entry)
    return found
