"""`ByTaskset`: advantages of each group by the function of the group's taskset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.learning.algorithms.advantages.advantage import AdvantageFunction
from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES, advantage_function


class ByTaskset:
    """Several advantage functions, each for the groups of its tasksets."""

    greedy_rollouts: ClassVar[int] = 0
    """No greedy rollout is needed."""

    def __init__(self, usual: AdvantageFunction, by_taskset: Mapping[int, AdvantageFunction]) -> None:
        """`by_taskset` has the functions of tasksets by index; `usual` is the function of all other groups."""
        self._usual = usual
        self._by_taskset = by_taskset

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """Fields of the members needed by any of the functions."""
        return self._usual.member_fields.union(*(function.member_fields for function in self._by_taskset.values()))

    def of(self, taskset: int) -> AdvantageFunction:
        """Returns the function of a taskset's groups; -1 is the index of an unknown taskset."""
        return self._by_taskset.get(taskset, self._usual)

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Returns the advantages of each group, compared with groups of the same function only  # each [G]"""
        numbers: dict[int, list[int]] = {}
        functions: dict[int, AdvantageFunction] = {}
        for number, group in enumerate(groups):
            function = self.of(group.taskset)
            functions[id(function)] = function
            numbers.setdefault(id(function), []).append(number)
        advantages: dict[int, Floats] = {}
        for key, function in functions.items():
            chosen = [groups[number] for number in numbers[key]]
            advantages |= dict(zip(numbers[key], function.advantages(chosen), strict=True))
        return [advantages[number] for number in range(len(groups))]

    def informative(self, group: ClosedGroup) -> bool:
        """True unless nothing can be learnt from the group by the function of its taskset."""
        return self.of(group.taskset).informative(group)


def stage_advantages(stage: StageSpec) -> AdvantageFunction:
    """Builds the advantage function of a stage, of several functions where tasksets have algorithms of their own.

    Raises ConfigError for an unknown name or unfit arguments.
    """
    usual = advantage_function(stage.algorithm)
    by_taskset = {
        index: ADVANTAGES.open(taskset.advantage, taskset.advantage_args)
        for index, taskset in enumerate(tasksets_of(stage))
        if taskset.advantage
    }
    return ByTaskset(usual, by_taskset) if by_taskset else usual
