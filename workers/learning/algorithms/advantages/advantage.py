"""`AdvantageFunction`: how much better than its group each rollout was."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField


class AdvantageFunction(Protocol):
    """A pure function of closed groups. Most of them look at one group at a time, so its batch does not matter.

    Neither the order of groups nor that of members may matter.
    """

    greedy_rollouts: ClassVar[int]
    """The number of rollouts of each group that are drawn greedily: a baseline, not to be trained. Mostly 0."""

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """The fields that it reads beside rewards, runs and steps; any of them costs reading the record of every
        member."""
        ...

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """The advantages of the closed groups of a batch: one for each experience, given to each of its trained tokens.

        A group is given whole, even if only some of its members are in the batch  # each [G]
        """
        ...

    def informative(self, group: ClosedGroup) -> bool:
        """False if the group teaches nothing and need not be planned. Asked with what `group.closed` tells alone."""
        ...


@runtime_checkable
class Substituting(Protocol):
    """An advantage function that has other experiences trained in the place of groups that teach nothing."""

    def substitutes(self, groups: Sequence[ClosedGroup]) -> Mapping[int, int]:
        """The index of the group that is trained in the place of another, by that one's; empty if each is trained
        itself."""
        ...


@runtime_checkable
class Masking(Protocol):
    """An advantage function with rollouts that are not trained, though they count in their group."""

    def trains(self, finish: str) -> bool:
        """False for rollouts that ended so: `stop`, `length` or `prompt_truncated`."""
        ...


class OneGroup(ABC):
    """The base of functions that look at one group at a time, take every group, and need rewards alone."""

    greedy_rollouts: ClassVar[int] = 0

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """No field: the rewards are in the close of the group."""
        return frozenset()

    @abstractmethod
    def of_group(self, group: ClosedGroup) -> Floats:
        """The advantage of each experience  # [G]"""

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """The advantages of each group, which depend on no other group  # each [G]"""
        return [self.of_group(group) for group in groups]

    def informative(self, group: ClosedGroup) -> bool:
        """True: no reward decides it."""
        return True
