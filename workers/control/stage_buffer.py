"""`StageBuffer` has the index of the stage under way, in its policy's order, kept up to date with the replay buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from rftd.streams.folds.replay_buffer import BufferEntry, Changes
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec import StageSpec
from rftd.workers.control.policies.buffer_index import BufferIndex
from rftd.workers.control.policies.policy import StalenessPolicy
from rftd.workers.control.policies.priorities import make_priority
from rftd.workers.control.policies.registry import make_policy


class StageBuffer:
    """The buffer of the stage under way: a cache, made from the replay buffer when it is first asked for."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._stage = -1
        self._policy: StalenessPolicy | None = None
        self._buffer: BufferIndex | None = None
        self._taken: list[BufferEntry] = []

    def of(self, stage: StageSpec, now_ns: int) -> tuple[StalenessPolicy, BufferIndex]:
        """Policy and index of the stage under way, as the replay buffer is and the clock reads now."""
        state = self._state
        if self._policy is None or self._buffer is None or self._stage != state.spine.stage:
            self._policy = make_policy(stage.policy)
            self._stage = state.spine.stage
            entries = chain(state.replay_buffer.waiting.values(), state.replay_buffer.cooling.values())
            self._buffer = BufferIndex(self._policy.order, make_priority(stage.policy.priority), entries)
        else:
            self._buffer.change(self._changes())
        self._taken = []
        # From now on the state notes what changes; None meant that nobody asked, so that folding a history
        # costs nothing here.
        state.touched = {}
        self._buffer.awake(now_ns)
        return self._policy, self._buffer

    def fresh(self) -> Iterator[BufferEntry]:
        """The experiences that the index has not taken in yet: all that wait, or that changed since it was asked."""
        state = self._state
        if self._buffer is None or self._stage != state.spine.stage:
            yield from state.replay_buffer.waiting.values()
        else:
            yield from (entry for entry in self._changes().values() if entry is not None)

    def _changes(self) -> Changes:
        """The changes that the index has not taken in yet; what it left out for an unwritten decision is as it was."""
        touched = self._state.touched or {}
        taken = self._taken
        left = {id: entry for entry in taken if (id := entry.member.experience) not in touched}
        return {**touched, **left} if left else touched

    def take(self, chosen: Sequence[BufferEntry]) -> None:
        """Leaves the chosen ones out until the buffer is asked for again: then they are what the replay buffer says."""
        assert self._buffer is not None
        self._buffer.take(chosen)
        # The caller may fail to write its plans: what was taken for them is put back when the buffer is asked
        # for again.
        self._taken += chosen
