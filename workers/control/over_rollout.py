"""Explore steps that are over before every task of them is done (`explorer.over_rollout`).

Explore step e of a stage is the groups e-1 times `batch_size` and up, `batch_size` of them, in the order of the
dataset. Once ceil(batch_size x (1 - ratio)) of them have closed, each of the others gets `wait_after_min` more, from
then on or from when it is given out; then it is closed. The wait is counted by this process; after a restart it begins
anew.
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
    """Open groups of steps that are over now, with why."""
    over = stage.rollout.over_rollout
    size = stage.batch_size
    if not over.ratio:
        return {}
    enough = needed_groups(stage)
    found: dict[UUID, GivenUp] = {}
    for step, groups in _open_steps(state, size).items():
        given_out = min(size, state.groups.next_sequence[state.spine.stage] - (step - 1) * size)
        done = given_out - len(groups)
        if done < enough:
            continue
        reason = f"{done} of the {size} tasks of explore step {step} were done {over.wait_after_min:g} s ago or longer"
        why = GivenUp(OverRolloutError.code, f"{reason} (explorer.over_rollout)", over.return_partial_tasks)
        found |= {group.id: why for group in groups if liveness.overdue(group.id, over.wait_after_min, now_s)}
    return found


def needed_groups(stage: StageSpec) -> int:
    """Tasks of an explore step that must be done before it may be over."""
    # 1 - 0.9 is a little more than 0.1, and no task is worth a rounding error.
    return max(1, math.ceil(stage.batch_size * (1 - stage.rollout.over_rollout.ratio) - 1e-9))


def step_of(stage: StageSpec, group: Group) -> int:
    """The explore step that the group belongs to, from 1."""
    return group.sequence // stage.batch_size + 1


def _open_steps(state: RunState, size: int) -> dict[int, list[Group]]:
    """Open groups by explore step. A task that somebody had given out once more belongs to none."""
    steps: dict[int, list[Group]] = {}
    for group in state.groups.open.values():
        if group.sequence >= 0 and not group.retry:
            steps.setdefault(group.sequence // size + 1, []).append(group)
    return steps
