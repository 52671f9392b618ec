"""`OpenGroups`: groups of rollouts leased and not yet closed, for counting cancelled rollouts in the metrics.

No single event records a cancelled rollout: a group is given up, or its experiment ends, and its remaining rollouts are
dropped.
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

_CALLS_AFTER_END: Final = 8
"""Number of calls of `settle` after an experiment's end before its open groups count as cancelled: closings of groups,
in other partitions, may be read later than the end.
"""
_MAX_CLOSED_BEFORE_LEASE: Final = 4096
"""Maximum number of remembered closed groups without a lease read so far: the lease, in another partition, is then
ignored.
"""


class _OpenGroup:
    """A group whose first lease was read, with the number of its failed rollouts."""

    __slots__ = ("experiment", "failed", "id", "repeat_times", "stage")

    def __init__(self, experiment: UUID, event: TaskLeased) -> None:
        """`event` is the first lease of the group."""
        self.experiment = experiment
        self.id = event.group
        """Id of the group."""
        self.stage = event.stage
        """Index of the group's stage."""
        self.repeat_times = event.repeat_times
        """Number of rollouts in the group."""
        self.failed = 0
        """Number of failed rollouts."""


class Cancelled(NamedTuple):
    """A number of cancelled rollouts, with the experiment and stage for the metric's labels."""

    experiment: UUID
    """Id of the experiment."""
    stage: int
    """Number of the stage."""
    rollouts: int
    """Number of cancelled rollouts."""


class OpenGroups:
    """Groups with a lease and without a closing among the records read since the daemon's start."""

    def __init__(self) -> None:
        # By the id as a number: a UUID's hash is computed in Python, an int's in C.
        self._open: dict[int, _OpenGroup] = {}
        """Open groups by id as a number."""
        self._closed: Newest[int, None] = Newest(_MAX_CLOSED_BEFORE_LEASE)
        """Groups closed before their lease was read, up to `_MAX_CLOSED_BEFORE_LEASE` of the newest."""
        self._given_up: dict[int, int] = {}
        """Groups closed before all rollouts ended, since the last call of `settle`, with the number of
        their members.
        """
        self._ending: dict[UUID, int] = {}
        """Ended experiments, with the number of further calls of `settle` before their open groups count as
        cancelled.
        """

    def leased(self, experiment: UUID, event: TaskLeased) -> None:
        """Records a lease; a group counts from its first lease on. A group whose first lease was not read
        is ignored.
        """
        if event.attempt == 1 and not event.reissue and event.group.int not in self._closed:
            self._open.setdefault(event.group.int, _OpenGroup(experiment, event))

    def failed(self, event: RolloutFailed) -> None:
        """Records a rollout that ended with an error or a time-out, and thus was not cancelled."""
        if (group := self._open.get(event.group.int)) is not None:
            group.failed += 1

    def closed(self, event: GroupClosed) -> None:
        """Records a closed group; only groups given up or ended with their stage have cancelled rollouts."""
        id = event.group.int
        if id not in self._open:
            self._closed.put(id, None)
        elif event.code in GIVEN_UP or event.reason == STAGE_ENDED:
            # Counted only at the next `settle`: failures of its rollouts may be among the next records.
            self._given_up[id] = len(event.members)
        else:
            del self._open[id]

    def ended(self, experiment: UUID) -> None:
        """Records the end of an experiment: after a few more calls of `settle`, its open groups count as cancelled."""
        self._ending[experiment] = _CALLS_AFTER_END

    @property
    def ending(self) -> bool:
        """True while `settle` has to be called soon, without waiting for records, to count an ended experiment's open
        groups.
        """
        return bool(self._ending)

    def settle(self, produced: Container[int]) -> Iterator[Cancelled]:
        """Yields the counts of cancelled rollouts; to be called after each batch of records.

        `produced` are the ids, as numbers, of experiences without a batch: rollouts among them ended, and are not
        cancelled.
        """
        for experiment, rounds in list(self._ending.items()):
            self._ending[experiment] = rounds - 1
            if not rounds:
                del self._ending[experiment]
                under_way = [id for id, group in self._open.items() if group.experiment == experiment]
                self._given_up = dict.fromkeys(under_way, 0) | self._given_up
        for id, member_count in self._given_up.items():
            group = self._open.pop(id)
            cancelled_count = group.repeat_times - group.failed - (member_count or _produced_count(group, produced))
            if cancelled_count > 0:
                yield Cancelled(group.experiment, group.stage, cancelled_count)
        self._given_up.clear()


def _produced_count(group: _OpenGroup, produced: Container[int]) -> int:
    """Returns the number of the group's produced experiences."""
    from rftd.workers.rollout.leased import experience_ids, rollout_ids  # late: few groups are given up

    ids = experience_ids(rollout_ids(group.id, range(group.repeat_times)))
    return sum(id.int in produced for id in ids)
