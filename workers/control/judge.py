"""`Judge`: groups from which nothing can be learnt, by the advantage function of their stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import numpy as np

from rftd.streams.folds.replay_buffer import BufferEntry
from rftd.streams.spec import AlgorithmSpec, StageSpec
from rftd.workers.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.algorithms.advantages.closed_group import ClosedGroup
from rftd.workers.algorithms.advantages.registry import ADVANTAGES, advantage_function


class Judge:
    """Asks our functions that have a threshold. A third party's is not imported here: its groups are all planned."""

    def __init__(self) -> None:
        self._algorithm: AlgorithmSpec | None = None
        self._function: AdvantageFunction | None = None

    def idle(self, stage: StageSpec, entries: Iterable[BufferEntry]) -> Sequence[BufferEntry]:
        """Of these experiences whole groups that teach nothing; groups of which some are gone stay."""
        function = self._of(stage.algorithm)
        if function is None:
            return ()
        groups: dict[UUID, list[BufferEntry]] = {}
        for entry in entries:
            if not entry.uses:
                groups.setdefault(entry.group.group, []).append(entry)
        found: list[BufferEntry] = []
        for members in groups.values():
            whole = len(members) == members[0].group_size
            if whole and not function.informative(_told(members)):
                found += members
        return found

    def reads_members(self, stage: StageSpec) -> bool:
        """True if what a group teaches is made of the payload of all its members; of a third party's we do not know."""
        name = stage.algorithm.advantage
        return not ADVANTAGES.builtin(name) or bool(advantage_function(stage.algorithm).member_fields)

    def _of(self, algorithm: AlgorithmSpec) -> AdvantageFunction | None:
        if algorithm is not self._algorithm:
            chosen = ADVANTAGES.builtin(algorithm.advantage) and "std_threshold" in algorithm.advantage_args
            self._algorithm, self._function = algorithm, advantage_function(algorithm) if chosen else None
        return self._function


def _told(members: list[BufferEntry]) -> ClosedGroup:
    return ClosedGroup(
        rewards=np.array([entry.member.reward for entry in members], np.float32),
        runs=np.array([entry.member.rollout for entry in members], np.int64),
    )
