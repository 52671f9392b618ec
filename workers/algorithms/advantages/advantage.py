"""`AdvantageFunction`: how much better than its group each rollout was."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from rftd.workers.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField


class AdvantageFunction(Protocol):
    """A pure function of closed groups. Most look at one group at a time: then it does not matter which batch it is in.

    Neither the order of groups nor that of members may matter.
    """

    greedy_rollouts: ClassVar[int]
    """How many rollouts of each group are drawn greedily: for a baseline, not to be trained. Mostly 0."""

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """What it reads beside rewards, runs and steps; anything costs a look at the record of every member."""
        ...

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """For each closed group of a batch, one number for each experience, given to each of its trained tokens.

        A group is given whole, even if only some of its members are in the batch  # each [G]
        """
        ...

    def informative(self, group: ClosedGroup) -> bool:
        """False if the group teaches nothing and need not be planned. Asked with what `group.closed` tells alone."""
        ...


@runtime_checkable
class Substituting(Protocol):
    """What an advantage function may offer beside: other experiences in the place of groups that teach nothing."""

    def substitutes(self, groups: Sequence[ClosedGroup]) -> Mapping[int, int]:
        """Index of a group -> index of the group that is trained in its place; empty if each is trained itself."""
        ...


@runtime_checkable
class Masking(Protocol):
    """An advantage function with rollouts that are not trained, though they count in their group."""

    def trains(self, finish: str) -> bool:
        """False for rollouts that ended so: `stop`, `length` or `prompt_truncated`."""
        ...


class OneGroup(ABC):
    """Base of functions that look at one group at a time, take every group, and need rewards alone."""

    greedy_rollouts: ClassVar[int] = 0

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """Nothing."""
        return frozenset()

    @abstractmethod
    def of_group(self, group: ClosedGroup) -> Floats:
        """One number for each experience  # [G]"""

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Each group by itself  # each [G]"""
        return [self.of_group(group) for group in groups]

    def informative(self, group: ClosedGroup) -> bool:
        """True: no reward decides it."""
        return True
