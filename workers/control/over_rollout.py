"""Explore steps ended before all their tasks are done (`explorer.over_rollout`).

Explore step e of a stage consists of `batch_size` groups from number (e-1) * `batch_size` on, in the order of the
dataset. Once ceil(batch_size x (1 - ratio)) of them have closed, each other group gets `wait_after_min` more, from then
on or from its first lease; then it is closed. This process counts the wait; after a restart the count begins anew.
"""

from __future__ import annotations

import math
from uuid import UUID

from rftd.ops.errors import OverRolloutError
from rftd.streams.folds.group import Group
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec.spec import StageSpec
from rftd.workers.control.closing import GivenUp
from rftd.workers.control.liveness import Liveness


def groups_over(state: RunState, stage: StageSpec, liveness: Liveness, now_s: float) -> dict[UUID, GivenUp]:
    """Returns the unfinished groups of explore steps that are ended now, with reasons."""
    over = stage.rollout.over_rollout
    size = stage.batch_size
    if not over.ratio:
        return {}
    enough = needed_groups(stage)
    given_up: dict[UUID, GivenUp] = {}
    for step, groups in _open_steps(state, size).items():
        given_out = min(size, state.groups.next_sequence[state.spine.stage] - (step - 1) * size)
        done = given_out - len(groups)
        if done < enough:
            continue
        reason = f"{done} of the {size} tasks of explore step {step} were done {over.wait_after_min:g} s ago or longer"
        cause = GivenUp(OverRolloutError.code, f"{reason} (explorer.over_rollout)", over.return_partial_tasks)
        given_up |= {group.id: cause for group in groups if liveness.overdue(group.id, over.wait_after_min, now_s)}
    return given_up


def needed_groups(stage: StageSpec) -> int:
    """Returns the number of finished tasks after which an explore step may be ended."""
    # 1 - 0.9 is a little more than 0.1, and a rounding error must not cost a task.
    return max(1, math.ceil(stage.batch_size * (1 - stage.rollout.over_rollout.ratio) - 1e-9))


def step_of(stage: StageSpec, group: Group) -> int:
    """Returns the explore step of a group, from 1."""
    return group.sequence // stage.batch_size + 1


def _open_steps(state: RunState, size: int) -> dict[int, list[Group]]:
    """Returns open groups by explore step; a task retried by a person belongs to no step."""
    steps: dict[int, list[Group]] = {}
    for group in state.groups.open.values():
        if group.sequence >= 0 and not group.retry:
            steps.setdefault(group.sequence // size + 1, []).append(group)
    return steps
