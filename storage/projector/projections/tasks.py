"""Leases and closed groups, from `rftd.tasks` and the spine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rftd.storage.database.tables.tasks import Groups, Leases
from rftd.storage.projector.projections.projection import Projection, id_of
from rftd.storage.projector.upserts import Changes, Rule, Upsert
from rftd.storage.queries.books import MAPPED_ROLLOUTS
from rftd.streams.events import batch, task
from rftd.streams.log.envelope import Decoded

LEASED: Final = Upsert(
    Leases,
    prefix="leased",
    owns=(
        "kind",
        "experiment",
        "stage",
        "subject",
        "worker",
        "slot",
        "attempt",
        "deadline_s",
        "sequence",
        "taskset",
        "row_start",
        "row_end",
        "epoch",
        "rollouts",
        "version",
    ),
)
"""Upsert of the columns owned by `task.leased` and `eval.leased`."""
EXPIRED: Final = Upsert(Leases, prefix="expired", owns=("expired_reason",))
"""Upsert of the columns owned by `task.expired`."""
CLOSED: Final = Upsert(
    Groups,
    prefix="closed",
    owns=("experiment", "stage", "sequence", "members", "member_map", "failed", "reward_mean", "code", "reason"),
)
"""Upsert of the columns owned by `group.closed`."""
TAGGED: Final = Upsert(Groups, prefix="tagged", owns=("tag",), rule=Rule.LAST)
"""Upsert of the column of a group's priority tag, owned by the last change."""


def _put_task_lease(event: task.TaskLeased, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of a task's lease."""
    changes.put(
        LEASED,
        decoded,
        id=event.lease.bytes,
        kind="task",
        experiment=id_of(decoded.head.experiment),
        stage=event.stage,
        subject=event.group.bytes,
        worker=event.worker.bytes,
        slot=event.slot,
        attempt=event.attempt,
        deadline_s=event.deadline_s,
        sequence=event.sequence,
        taskset=None,
        row_start=event.row,
        row_end=event.row + 1,
        epoch=event.epoch,
        rollouts=len(event.rollouts),
        version=event.min_version,
    )


def _put_eval_lease(event: task.EvalLeased, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of an evaluation's lease."""
    changes.put(
        LEASED,
        decoded,
        id=event.lease.bytes,
        kind="eval",
        experiment=id_of(decoded.head.experiment),
        stage=event.stage,
        subject=event.eval.bytes,
        worker=event.worker.bytes,
        slot=event.slot,
        attempt=event.attempt,
        deadline_s=event.deadline_s,
        sequence=None,
        taskset=event.taskset,
        row_start=event.row_start,
        row_end=event.row_end,
        epoch=None,
        rollouts=event.row_end - event.row_start,
        version=event.version,
    )


def _put_expired(event: task.TaskExpired, decoded: Decoded, changes: Changes) -> None:
    """Marks a lease as expired."""
    changes.put(EXPIRED, decoded, id=event.lease.bytes, expired_reason=event.reason)


def _put_closed_group(event: task.GroupClosed, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of a closed group."""
    group = event.group.bytes
    members = event.members
    changes.put(
        CLOSED,
        decoded,
        id=group,
        experiment=id_of(decoded.head.experiment),
        stage=event.stage,
        sequence=event.sequence,
        members=len(members),
        member_map=_member_map(members),
        failed=event.failed,
        reward_mean=sum(member.reward for member in members) / len(members) if members else None,
        code=event.code,
        reason=event.reason,
    )


def _member_map(members: Sequence[task.Member]) -> str:
    """Returns a digit for each rollout number: 1 for a member of the group."""
    rollouts = {member.rollout for member in members if 0 <= member.rollout < MAPPED_ROLLOUTS}
    return "".join("1" if rollout in rollouts else "0" for rollout in range(max(rollouts, default=-1) + 1))


def _put_tag(event: batch.ExperiencePrioritized, decoded: Decoded, changes: Changes) -> None:
    """Sets the priority tag of a group."""
    changes.put(TAGGED, decoded, id=event.group.bytes, tag=event.priority)


PROJECTION: Final = Projection(
    name="tasks",
    version=2,
    tables=(Leases, Groups),
    handlers={
        task.TaskLeased: _put_task_lease,
        task.EvalLeased: _put_eval_lease,
        task.TaskExpired: _put_expired,
        task.GroupClosed: _put_closed_group,
        batch.ExperiencePrioritized: _put_tag,
    },
)
"""Projection of leases and groups, with the groups' priority tags."""
