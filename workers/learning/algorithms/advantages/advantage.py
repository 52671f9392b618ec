"""`AdvantageFunction`: the interface of functions that compare each rollout with its group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from rftd.workers.learning.algorithms.advantages.closed_group import ClosedGroup, Floats, MemberField


class AdvantageFunction(Protocol):
    """A pure function of closed groups. Most functions treat each group separately, whatever its batch.

    The order of groups and of members must not matter.
    """

    greedy_rollouts: ClassVar[int]
    """Number of greedily decoded rollouts in each group, used as a baseline and never trained; usually 0."""

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """Fields of the members needed besides rewards, runs and steps; any field costs reading the record of every
        member.
        """
        ...

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Returns the advantage of each experience of a batch's closed groups, to be used for all of its trained tokens
        # each [G]

        A group is passed with all members, even if the batch has only a part of them.
        """
        ...

    def informative(self, group: ClosedGroup) -> bool:
        """True unless nothing can be learnt from the group, which then need not be planned; decided by the facts of
        `group.closed` alone.
        """
        ...


@runtime_checkable
class Substituting(Protocol):
    """An advantage function that trains other groups again in place of uninformative ones."""

    def substitutes(self, groups: Sequence[ClosedGroup]) -> Mapping[int, int]:
        """Maps the index of each replaced group to the index of the group trained in its place; empty if none is
        replaced.
        """
        ...


@runtime_checkable
class Masking(Protocol):
    """An advantage function that leaves some rollouts untrained, although they count in their group."""

    def trains(self, finish: str) -> bool:
        """True if rollouts that ended by `finish` are trained; `finish` is `stop`, `length` or `prompt_truncated`."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """An advantage function relative to figures of earlier batches: one number for each role, saved with every
    checkpoint.
    """

    def relative(
        self, roles: Sequence[str], rewards: Sequence[float], remembered: Mapping[str, float]
    ) -> tuple[list[float], dict[str, float]]:
        """Returns the advantage of each sequence of a batch, and the numbers to remember; neither depends on the order.

        A pure function: a batch executed again after a checkpoint has equal advantages.
        """
        ...


class OneGroup(ABC):
    """Base class of functions of a single group's rewards, informative for every group."""

    greedy_rollouts: ClassVar[int] = 0
    """No greedy rollout is needed."""

    @property
    def member_fields(self) -> frozenset[MemberField]:
        """No field: the rewards are part of `group.closed`."""
        return frozenset()

    @abstractmethod
    def of_group(self, group: ClosedGroup) -> Floats:
        """Returns the advantage of each experience of the group  # [G]"""

    def advantages(self, groups: Sequence[ClosedGroup]) -> Sequence[Floats]:
        """Returns the advantages of each group, computed separately  # each [G]"""
        return [self.of_group(group) for group in groups]

    def informative(self, group: ClosedGroup) -> bool:
        """True for every group, whatever its rewards."""
        return True
