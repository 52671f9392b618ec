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
EXPIRED: Final = Upsert(Leases, prefix="expired", owns=("expired_reason",))
CLOSED: Final = Upsert(
    Groups,
    prefix="closed",
    owns=("experiment", "stage", "sequence", "members", "member_map", "failed", "reward_mean", "code", "reason"),
)
TAGGED: Final = Upsert(Groups, prefix="tagged", owns=("tag",), rule=Rule.LAST)


def _task_leased(event: task.TaskLeased, decoded: Decoded, changes: Changes) -> None:
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


def _eval_leased(event: task.EvalLeased, decoded: Decoded, changes: Changes) -> None:
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


def _expired(event: task.TaskExpired, decoded: Decoded, changes: Changes) -> None:
    changes.put(EXPIRED, decoded, id=event.lease.bytes, expired_reason=event.reason)


def _closed(event: task.GroupClosed, decoded: Decoded, changes: Changes) -> None:
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
        member_map=_map_of(members),
        failed=event.failed,
        reward_mean=sum(member.reward for member in members) / len(members) if members else None,
        code=event.code,
        reason=event.reason,
    )


def _map_of(members: Sequence[task.Member]) -> str:
    rollouts = {member.rollout for member in members if 0 <= member.rollout < MAPPED_ROLLOUTS}
    return "".join("1" if rollout in rollouts else "0" for rollout in range(max(rollouts, default=-1) + 1))


def _tagged(event: batch.ExperiencePrioritized, decoded: Decoded, changes: Changes) -> None:
    changes.put(TAGGED, decoded, id=event.group.bytes, tag=event.priority)


PROJECTION: Final = Projection(
    name="tasks",
    version=2,
    tables=(Leases, Groups),
    handlers={
        task.TaskLeased: _task_leased,
        task.EvalLeased: _eval_leased,
        task.TaskExpired: _expired,
        task.GroupClosed: _closed,
        batch.ExperiencePrioritized: _tagged,
    },
)
