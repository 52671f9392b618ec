"""Ends of groups and of stages: a group ends with its last rollout, after its last attempt, or with its stage (the step
"closing" of the dispatcher).

Each end is one `group.closed`, preceded by `task.expired` for leases still open.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from rftd.ops import limits
from rftd.ops.errors import ConfigError, DataError, DeadlyTaskError, PipelineError, RolloutTimeoutError
from rftd.streams.events.experience import GroupProcessed
from rftd.streams.events.task import GroupClosed, Member, TaskExpired
from rftd.streams.folds.failed_tasks import STAGE_ENDED
from rftd.streams.folds.group import Group
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.decision import Decision, slot_partition
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import TaskPlace, task_place, tasksets_of


def attempts_of(stage: StageSpec, row: int) -> int:
    """Returns how often a missing rollout is leased before it counts as failed. Raises ConfigError."""
    if stage.taskset is None:
        raise ConfigError(f"stage {stage.name!r} explores and has no taskset", field="taskset", fix="submit it again")
    return tasksets_of(stage)[task_place(stage, row).taskset].max_retry_times + 1


def leasable(stage: StageSpec, group: Group) -> tuple[int, ...]:
    """Returns the group's missing rollouts that are not leased now and may be leased again.

    Conversations committed by clients may always be leased again: they are over, so no worker can have died of them.
    """
    served = stage.serving is not None
    if group.losses_alone >= limits.LOSSES_ALONE and not served:
        return ()
    max_attempts = math.inf if served else attempts_of(stage, group.row)
    under_way = group.under_way
    # The usual case of a group just leased, tested for every open group in every turn: one comparison.
    if len(under_way) == group.repeat_times:
        return ()
    ended = group.members.keys() | group.failed.keys() | under_way
    spent = group.spent
    return tuple(
        rollout
        for rollout in range(group.repeat_times)
        if rollout not in ended and spent.get(rollout, 0) < max_attempts
    )


def loose_groups(state: RunState, extra: Collection[UUID] = ()) -> list[Group]:
    """Returns the open groups that may have to be closed or leased, and the `extra` ones, in the dataset's order."""
    groups = state.groups
    if not groups.loose and not extra:
        return []
    return sorted((groups.open[id] for id in groups.loose.union(extra)), key=attrgetter("sequence", "id"))


class GivenUp(NamedTuple):
    """Reason for closing a group before its rollouts have ended."""

    code: str
    """Error code of the close, one of `GIVEN_UP`."""
    reason: str
    """Cause of the close as text, recorded in group.closed and task.expired."""
    keep_members: bool
    """True if the group closes with its finished rollouts as members; False if it closes without members."""


def close_groups(
    state: RunState, *, stage_over: bool = False, given_up: Mapping[UUID, GivenUp] = MappingProxyType({})
) -> Iterator[Decision]:
    """Yields a group.closed for each finished group, and for each group of `given_up`.

    A preceding task.expired tells explorers still working on a rollout. `stage_over` is True if no experience of the
    stage can be trained any more.
    """
    for group in loose_groups(state, given_up):
        cause = given_up.get(group.id) if given_up else None
        # Before `cause`: a complete group closes with all of its members, even if it would be given up now.
        if group.terminal:
            if awaits_pipeline(state, group, stage_over=stage_over):
                continue
            if any(lease.reissue for lease in group.leases.values()):
                yield from _expiries(group, "every rollout of its group has ended")
            yield Decision(_close_finished(state, group, stage_over=stage_over))
        elif cause is not None:
            yield from _expiries(group, cause.reason)
            yield Decision(_close_given_up(state, group, cause))
        # While a lease is open its rollouts may still arrive: it expires first, and the group closes in a later turn.
        elif not group.leases and (stage_over or not leasable(_stage_of(state, group), group)):
            if awaits_pipeline(state, group, stage_over=stage_over):
                continue
            yield Decision(_close_finished(state, group, stage_over=stage_over))


def awaits_pipeline(state: RunState, group: Group, *, stage_over: bool = False) -> bool:
    """True if a finished group with members needs a verdict of its stage's experience pipeline before closing."""
    if stage_over or not group.members or not _stage_of(state, group).pipeline or verdict_on(group) is not None:
        return False
    processing = group.processing
    return processing is None or bool(processing.leases) or processing.attempts < limits.PIPELINE_ATTEMPTS


def unprocessed_groups(state: RunState, stage: StageSpec) -> Iterator[Group]:
    """Yields the finished groups to be leased to an explorer for the stage's experience pipeline."""
    for group in loose_groups(state):
        finished = group.terminal or (not group.leases and not leasable(stage, group))
        leased = group.processing is not None and group.processing.leases
        if finished and not leased and group.stage == state.spine.stage and awaits_pipeline(state, group):
            yield group


def verdict_on(group: Group) -> GroupProcessed | None:
    """Returns the pipeline's verdict on the group's present members; None without one."""
    return group.processing.verdict_on(tuple(sorted(group.members))) if group.processing is not None else None


def _expiries(group: Group, reason: str) -> Iterator[Decision]:
    """Yields a task.expired for each open lease of the group."""
    for lease in group.leases.values():
        yield Decision(TaskExpired(lease=lease.id, slot=lease.slot, reason=reason), slot_partition(lease.slot))


def _stage_of(state: RunState, group: Group) -> StageSpec:
    """Returns the group's stage. Raises DataError for a stage absent from the specification."""
    spec = state.spine.spec
    if spec is None or not 0 <= group.stage < len(spec.stages):
        raise DataError(
            f"group {group.id} was leased in stage {group.stage}, which does not exist", fix="see rftd verify"
        )
    return spec.stages[group.stage]


def _close_given_up(state: RunState, group: Group, cause: GivenUp) -> GroupClosed:
    """Returns the close of a group given up, with its finished rollouts or without members."""
    # Members without a verdict are not trained in a stage with a pipeline.
    keeps = cause.keep_members and not _stage_of(state, group).pipeline
    members = group.members if keeps else {}
    done = f"{len(group.members)} of {group.repeat_times} rollouts were done"
    return _event(state, group, members, cause.code, f"{cause.reason}; {done}{'' if keeps else ', none is used'}")


def _close_finished(state: RunState, group: Group, *, stage_over: bool = False) -> GroupClosed:
    """Returns the close of a finished group, with code and reason if rollouts are missing."""
    code = ""
    reason = ""
    verdict = None
    if group.members and not stage_over and _stage_of(state, group).pipeline:
        verdict = verdict_on(group)
        if verdict is None or verdict.reason:
            attempts = group.processing.attempts if group.processing is not None else 0
            why = verdict.reason if verdict is not None else f"no explorer finished it in {attempts} attempts"
            return _event(state, group, {}, PipelineError.code, f"experience pipeline: {why}")
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
    return _event(state, group, group.members, code, reason, verdict)


def _event(
    state: RunState,
    group: Group,
    members: Mapping[int, Member],
    code: str,
    reason: str,
    verdict: GroupProcessed | None = None,
) -> GroupClosed:
    """Builds the group.closed event of a group, from these members, an error code (empty without an error), a reason,
    and the pipeline's verdict on the members.
    """
    task = _rewarded_task(state, group)
    return GroupClosed(
        group=group.id,
        sequence=group.sequence,
        stage=group.stage,
        # In the order of their index and not of their arrival: the event must not depend on the speed of rollouts.
        members=tuple(members[index] for index in sorted(members)),
        failed=group.repeat_times - len(members),
        code=code,
        reason=reason,
        busy_ms=sum(group.durations_ms[index] for index in members),
        taskset=task.taskset,
        row=task.row,
        verdicts=verdict.verdicts if verdict is not None else (),
        pipeline_metrics=verdict.metrics if verdict is not None else {},
    )


def _rewarded_task(state: RunState, group: Group) -> TaskPlace:
    """Returns taskset and row of a group whose selector draws by rewards, or whose stage has tasksets with algorithms
    of their own; (-1, -1) for any other group.
    """
    spec = state.spine.spec
    if spec is not None and 0 <= group.stage < len(spec.stages):
        stage = spec.stages[group.stage]
        task = task_place(stage, group.row)
        tasksets = tasksets_of(stage)
        own = any(taskset.algorithm for taskset in tasksets)
        if task.taskset < len(tasksets) and (own or tasksets[task.taskset].follows_rewards):
            return task
    return TaskPlace(-1, -1)


def left_to_collect(state: RunState, stage: StageSpec) -> int:
    """Returns the number of the current explore stage's tasks not leased yet."""
    return max(0, stage.collect_groups - state.groups.next_sequence.get(state.spine.stage, 0))


def is_explored(state: RunState, stage: StageSpec) -> bool:
    """True if the current stage needs no further rollouts."""
    if stage.kind != "explore":
        return state.spine.planned >= state.spine.last_version
    still_open = any(group.stage == state.spine.stage for group in state.groups.open.values())
    return not still_open and not left_to_collect(state, stage)
