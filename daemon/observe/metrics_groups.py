"""`OpenGroups`: the groups under way, as far as a counter needs them: which of their rollouts were cancelled.

No event says so of each: a group is given up, or its experiment ends, and what is left of it is dropped.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, NamedTuple
from uuid import UUID

from rftd.streams.events.experience import RolloutFailed
from rftd.streams.events.task import GroupClosed, TaskLeased
from rftd.streams.folds.failed_tasks import STAGE_ENDED
from rftd.streams.folds.groups import GIVEN_UP
from rftd.streams.log.newest import Newest

_ROUNDS: Final = 8
"""Rounds of records after the end of an experiment, within which the closings of its last groups arrive."""
_CLOSED: Final = 4096
"""The most groups that are remembered because their closing came before their lease, from another partition."""


class _Open:
    """A group whose first lease was seen."""

    __slots__ = ("experiment", "failed", "id", "repeat_times", "stage")

    def __init__(self, experiment: UUID, event: TaskLeased) -> None:
        self.experiment = experiment
        self.id = event.group
        self.stage = event.stage
        self.repeat_times = event.repeat_times
        self.failed = 0


class Cancelled(NamedTuple):
    """Rollouts of one group that were dropped before they ended."""

    experiment: UUID
    stage: int
    rollouts: int


class OpenGroups:
    """The groups that were leased since it began, and are neither closed nor settled."""

    def __init__(self) -> None:
        # By the id as a number: a UUID's hash is computed in Python, an int's in C.
        self._open: dict[int, _Open] = {}
        self._closed: Newest[int, None] = Newest(_CLOSED)
        self._given_up: dict[int, int] = {}
        """Groups that were closed before they were over, with the number of members that they keep."""
        self._ending: dict[UUID, int] = {}
        """Experiments that ended, with the rounds that are still to be waited for."""

    def leased(self, experiment: UUID, event: TaskLeased) -> None:
        """Takes in a lease: the first of a group opens it. Of a group whose first one was not seen nothing is known."""
        if event.attempt == 1 and not event.reissue and event.group.int not in self._closed:
            self._open.setdefault(event.group.int, _Open(experiment, event))

    def failed(self, event: RolloutFailed) -> None:
        """Takes in a rollout that ended by itself."""
        if (group := self._open.get(event.group.int)) is not None:
            group.failed += 1

    def closed(self, event: GroupClosed) -> None:
        """Takes in the end of a group; it counts if it was given up."""
        id = event.group.int
        if id not in self._open:
            self._closed.put(id, None)
        elif event.code in GIVEN_UP or event.reason == STAGE_ENDED:
            # It stays open until this round is settled: failures of its rollouts may be among what is shown next.
            self._given_up[id] = len(event.members)
        else:
            del self._open[id]

    def ended(self, experiment: UUID) -> None:
        """Takes in the end of an experiment: nobody goes on with what is under way."""
        self._ending[experiment] = _ROUNDS

    @property
    def ending(self) -> bool:
        """True if it waits for closings that may still arrive."""
        return bool(self._ending)

    def settle(self, produced: Container[int]) -> Iterator[Cancelled]:
        """The rollouts that were cancelled since the last time, once everything that arrived in this round was shown.

        `produced` has the ids of experiences, as numbers, that no batch has taken: members that a group lost may be
        among them, and did end.
        """
        for experiment, rounds in list(self._ending.items()):
            self._ending[experiment] = rounds - 1
            if not rounds:
                del self._ending[experiment]
                under_way = [id for id, group in self._open.items() if group.experiment == experiment]
                self._given_up = dict.fromkeys(under_way, 0) | self._given_up
        for id, kept in self._given_up.items():
            group = self._open.pop(id)
            left = group.repeat_times - group.failed - (kept or _made(group, produced))
            if left > 0:
                yield Cancelled(group.experiment, group.stage, left)
        self._given_up.clear()


def _made(group: _Open, produced: Container[int]) -> int:
    from rftd.workers.rollout.leased import experience_ids, rollout_ids  # late: few groups are given up

    ids = experience_ids(rollout_ids(group.id, range(group.repeat_times)))
    return sum(id.int in produced for id in ids)
