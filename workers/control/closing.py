"""Groups and stages that are over. A group is once all rollouts are terminal, or its attempts or its stage (rule 5)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from rftd.ops import limits
from rftd.ops.errors import ConfigError, DataError, DeadlyTaskError, RolloutTimeoutError
from rftd.streams.events.task import GroupClosed, Member, TaskExpired
from rftd.streams.folds.failed_tasks import STAGE_ENDED
from rftd.streams.folds.group import Group
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.decision import Decision, slot_partition
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.stage_tasks import TaskPlace, task_place, tasksets_of


def attempts_of(stage: StageSpec, row: int) -> int:
    """The number of times that a missing rollout of a task is leased before it counts as failed. Raises ConfigError."""
    if stage.taskset is None:
        raise ConfigError(f"stage {stage.name!r} explores and has no taskset", field="taskset", fix="submit it anew")
    return tasksets_of(stage)[task_place(stage, row).taskset].max_retry_times + 1


def leasable(stage: StageSpec, group: Group) -> tuple[int, ...]:
    """Rollouts that the group misses, that are not under way, and whose attempts are not spent.

    Conversations that were committed are never given up: they are over, so whatever a worker died of, it was not them.
    """
    served = stage.serving is not None
    if group.losses_alone >= limits.LOSSES_ALONE and not served:
        return ()
    most = math.inf if served else attempts_of(stage, group.row)
    under_way = group.under_way
    # The usual case of a group that was just leased, asked for every open group in every turn: it costs one
    # comparison.
    if len(under_way) == group.repeat_times:
        return ()
    ended = group.members.keys() | group.failed.keys() | under_way
    spent = group.spent
    return tuple(each for each in range(group.repeat_times) if each not in ended and spent.get(each, 0) < most)


def loose_groups(state: RunState, others: Collection[UUID] = ()) -> list[Group]:
    """Groups that may have to be closed or leased, and the `others`, in the order of the dataset."""
    groups = state.groups
    if not groups.loose and not others:
        return []
    return sorted((groups.open[id] for id in groups.loose.union(others)), key=attrgetter("sequence", "id"))


class GivenUp(NamedTuple):
    """The reason why a group is closed before it is over."""

    code: str
    """A code of `GIVEN_UP`."""
    reason: str
    keep_members: bool
    """The group closes with what is done; otherwise without members."""


def close_groups(
    state: RunState, *, stage_over: bool = False, given_up: Mapping[UUID, GivenUp] = MappingProxyType({})
) -> Iterator[Decision]:
    """A group.closed for each group that is over or given up.

    Explorers that still work on one of its rollouts learn it from task.expired. `stage_over`: nothing of the stage can
    be trained any more.
    """
    for group in loose_groups(state, given_up):
        why = given_up.get(group.id) if given_up else None
        # Before `why`: a group that is complete closes with all of its members, even where it would have been
        # given up now.
        if group.terminal:
            if any(lease.reissue for lease in group.leases.values()):
                yield from _expired(group, "every rollout of its group has ended")
            yield Decision(_closed(state, group))
        elif why is not None:
            yield from _expired(group, why.reason)
            yield Decision(_given_up(state, group, why))
        # While a lease is open its rollouts may still arrive: it expires first, and the group closes in a
        # later turn.
        elif not group.leases and (stage_over or not leasable(_stage_of(state, group), group)):
            yield Decision(_closed(state, group, stage_over=stage_over))


def _expired(group: Group, reason: str) -> Iterator[Decision]:
    for lease in group.leases.values():
        yield Decision(TaskExpired(lease=lease.id, slot=lease.slot, reason=reason), slot_partition(lease.slot))


def _stage_of(state: RunState, group: Group) -> StageSpec:
    spec = state.spine.spec
    if spec is None or not 0 <= group.stage < len(spec.stages):
        raise DataError(
            f"group {group.id} was leased in stage {group.stage}, which there is not", fix="see rftd verify"
        )
    return spec.stages[group.stage]


def _given_up(state: RunState, group: Group, why: GivenUp) -> GroupClosed:
    kept = group.members if why.keep_members else {}
    done = f"{len(group.members)} of {group.repeat_times} rollouts were done"
    return _event(state, group, kept, why.code, f"{why.reason}; {done}{'' if why.keep_members else ', none is used'}")


def _closed(state: RunState, group: Group, *, stage_over: bool = False) -> GroupClosed:
    code = ""
    reason = ""
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
    return _event(state, group, group.members, code, reason)


def _event(state: RunState, group: Group, members: Mapping[int, Member], code: str, reason: str) -> GroupClosed:
    told = _told(state, group)
    return GroupClosed(
        group=group.id,
        sequence=group.sequence,
        stage=group.stage,
        # In the order of their index and not of their arrival: what the event holds must not depend on how
        # fast each was.
        members=tuple(members[index] for index in sorted(members)),
        failed=group.repeat_times - len(members),
        code=code,
        reason=reason,
        busy_ms=sum(group.durations_ms[index] for index in members),
        taskset=told.taskset,
        row=told.row,
    )


def _told(state: RunState, group: Group) -> TaskPlace:
    """The taskset and the row of which a selector is told the rewards; -1 if none is."""
    spec = state.spine.spec
    if spec is not None and 0 <= group.stage < len(spec.stages):
        stage = spec.stages[group.stage]
        place = task_place(stage, group.row)
        tasksets = tasksets_of(stage)
        if place.taskset < len(tasksets) and tasksets[place.taskset].follows_rewards:
            return place
    return TaskPlace(-1, -1)


def left_to_collect(state: RunState, stage: StageSpec) -> int:
    """Groups of the stage under way that are still to be given out."""
    return max(0, stage.collect_groups - state.groups.next_sequence.get(state.spine.stage, 0))


def explored(state: RunState, stage: StageSpec) -> bool:
    """True if nothing more of the stage under way has to be explored."""
    if stage.kind != "explore":
        return state.spine.planned >= state.spine.last_version
    still_open = any(group.stage == state.spine.stage for group in state.groups.open.values())
    return not still_open and not left_to_collect(state, stage)
