"""Groups that are over: every rollout terminal, its attempts spent, or its stage at an end (rule 5)."""

from __future__ import annotations

from collections.abc import Iterator

from rftd.ops import limits
from rftd.ops.errors import DeadlyTaskError, RolloutTimeoutError
from rftd.streams.events.task import GroupClosed
from rftd.streams.folds.failed_tasks import STAGE_ENDED
from rftd.streams.folds.groups import Group
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec import StageSpec
from rftd.workers.dispatcher.decision import Decision


def attempts_of(stage: StageSpec) -> int:
    """How often a group's missing rollouts are leased before they count as failed."""
    assert stage.taskset is not None
    return stage.taskset.max_retry_times + 1


def is_spent(stage: StageSpec, group: Group) -> bool:
    """True if what the group still misses must not be leased again."""
    return group.attempts_spent >= attempts_of(stage) or group.losses_alone >= limits.LOSSES_ALONE


def close_groups(state: RunState, *, stage_over: bool) -> Iterator[Decision]:
    """group.closed for each group that is over. `stage_over`: nothing of the stage can be trained any more."""
    for group in list(state.groups.open.values()):
        if group.sequence < 0:
            continue
        spent = not group.leases and is_spent(_stage_of(state, group), group)
        if group.terminal or spent or (stage_over and not group.leases):
            yield Decision(_closed(group, stage_over=stage_over))


def _stage_of(state: RunState, group: Group) -> StageSpec:
    assert state.spine.spec is not None
    return state.spine.spec.stages[group.stage]


def _closed(group: Group, *, stage_over: bool) -> GroupClosed:
    code, reason = "", ""
    if group.missing and group.losses_alone and not stage_over:
        code = DeadlyTaskError.code
        reason = (
            f"its worker died each time that it ran nothing else ({group.losses_alone}), and {group.losses} times "
            f"before; the last: {group.expired[1]}"
        )
    elif group.failed:
        code, reason = group.failed[max(group.failed)]
    elif group.missing:
        code = RolloutTimeoutError.code
        reason = (
            f"no worker finished it in {group.attempts_spent} attempts; the last: {group.expired[1] or 'it expired'}"
        )
        reason = STAGE_ENDED if stage_over else reason
    return GroupClosed(
        group=group.id,
        sequence=group.sequence,
        stage=group.stage,
        members=tuple(group.members[index] for index in sorted(group.members)),
        failed=group.repeat_times - len(group.members),
        code=code,
        reason=reason,
    )
