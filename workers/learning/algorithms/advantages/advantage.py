"""`AdvantageFunction`: the advantage of each rollout over its group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField


class AdvantageFunction(Protocol):
    """A pure function of closed groups; most functions look at each group alone, whatever its batch.

    The order of groups and of members must not matter.
    """

    greedy_rollouts: ClassVar[int]
    """Number of greedily decoded rollouts of each group, used as a baseline and never trained; mostly 0."""

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """Fields read beside rewards, runs and steps; any field costs reading the record of every member."""
        ...

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Returns the advantages of a batch's closed groups: one for each experience, for all of its trained tokens.

        A group is passed whole, even with only a part of its members in the batch  # each [G]
        """
        ...

    def informative(self, group: ClosedGroup) -> bool:
        """False if nothing can be learnt from the group, which then need not be planned; called with `group.closed`'s
        facts alone.
        """
        ...


@runtime_checkable
class Substituting(Protocol):
    """An advantage function that trains other experiences in place of uninformative groups."""

    def substitutes(self, groups: Sequence[ClosedGroup]) -> Mapping[int, int]:
        """Maps the index of a replaced group to the index of the group trained in its place; empty without
        replacements.
        """
        ...


@runtime_checkable
class Masking(Protocol):
    """An advantage function with untrained rollouts, counted in their group nevertheless."""

    def trains(self, finish: str) -> bool:
        """False for rollouts with an untrained finish: `stop`, `length` or `prompt_truncated`."""
        ...


class OneGroup(ABC):
    """Base of functions over one group at a time, for every kind of group, from rewards alone."""

    greedy_rollouts: ClassVar[int] = 0

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """No field: the rewards are in the close of the group."""
        return frozenset()

    @abstractmethod
    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantage of each experience  # [G]"""

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Returns the advantages of each group, independent of other groups  # each [G]"""
        return [self.of_group(group) for group in groups]

    def informative(self, group: ClosedGroup) -> bool:
        """True: no reward makes a group uninformative."""
        return True
