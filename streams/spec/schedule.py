"""Schedule of publications, evaluations and checkpoints in a stage: pure functions of its specification.

Used by trainer and dispatcher. Steps count within the stage, from 1; step 0 is the weights at its beginning.

The schedule of weights divides a stage's explore steps into windows, with a sync point between
two: explorers reach it after explore step e if e > offset and (e - offset) is a multiple of their interval, and first
finish every open group. All groups of a window begin on one version:

    fixed            the newest published by the trainer, at its interval, up to step e - offset: known beforehand
    trainer_driven   the newest published by the trainer, at its interval, when the window begins
    explorer_driven  the trainer's newest at the time of the request, at the sync point
    fully_async      no windows: explorers load each version when published, in flight
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import gcd

import msgspec

from rftd.ops import limits
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec, StageSpec


def explorer_interval(sync: Synchronizer) -> int:
    """Returns the number of explore steps between two sync points."""
    return sync.explorer_sync_interval or sync.sync_interval


def trainer_interval(sync: Synchronizer) -> int:
    """Returns the number of training steps between two publications; 0 if the trainer publishes only on request."""
    return 0 if sync.sync_style == "explorer_driven" else sync.trainer_sync_interval or sync.sync_interval


def has_windows(sync: Synchronizer) -> bool:
    """True if rollouts are pinned to the version of their window."""
    return sync.sync_style != "fully_async"


def window_of(sync: Synchronizer, explore_step: int) -> int:
    """Returns the window, from 0, to which an explore step belongs."""
    return max(0, (explore_step - 1 - sync.sync_offset) // explorer_interval(sync))


def window_steps(sync: Synchronizer, window: int) -> int:
    """Returns the number of explore steps in a window: the first one has `offset` more."""
    return explorer_interval(sync) + (sync.sync_offset if window == 0 else 0)


def step_of_window(sync: Synchronizer, window: int) -> int:
    """Returns the stage step whose weights a window uses, for `fixed`; for other styles the lower bound 0."""
    if sync.sync_style != "fixed":
        return 0
    # Down to the last publication before the sync point: dividing and multiplying again gives a different number.
    trainer = trainer_interval(sync)
    return window * explorer_interval(sync) // trainer * trainer


def needed_staleness(sync: Synchronizer) -> int:
    """Returns the smallest staleness bound, in versions, under which every experience of the schedule can be trained.

    Experiences of explore step e are trained by step e, so their staleness is e - 1 less the version of their window.
    The last step of a window is the worst one; the age of its version at the sync point is (window * explorer interval)
    modulo the trainer's, at most trainer interval - gcd.
    """
    explorer = explorer_interval(sync)
    trainer = trainer_interval(sync)
    first = sync.sync_offset + explorer - 1
    match sync.sync_style:
        case "fixed":
            return first + trainer - gcd(explorer, trainer)
        case "trainer_driven":
            return max(first, explorer - 1 + trainer - 1)
        case "explorer_driven":
            return first
        case _:
            return trainer - 1


def kept_versions(stage: StageSpec) -> int:
    """Returns the maximum number of versions by which the weights of a new rollout may lie behind the trainer's."""
    sync = stage.synchronizer
    explorer = explorer_interval(sync)
    trainer = trainer_interval(sync) or 1  # 0: the trainer publishes on request, at every step at the soonest
    interval = max(explorer, trainer)
    if sync.sync_style in ("fixed", "fully_async"):
        return max(limits.KEPT_WEIGHT_VERSIONS, sync.sync_offset + 2 * interval) * interval
    # Trained while a window is under way: the batches planned or waiting at its beginning, and its own batches.
    ahead = max(limits.ROOM_AHEAD_VERSIONS, plan_ahead(stage.policy)) + stage.policy.max_inflight_batches
    return max(limits.KEPT_WEIGHT_VERSIONS * interval, sync.sync_offset + explorer + trainer + ahead)


def plan_ahead(policy: PolicySpec) -> int:
    """Returns the maximum number of batches planned and not yet trained.

    A group closing late finds its batch farther away the more is planned, so only a wide bound affords more than the
    two needed to keep a trainer busy; the staleness of a planned item is exact either way.
    """
    wide = min(policy.max_staleness_versions // 8, limits.PLAN_AHEAD_MOST_BATCHES)
    return max(limits.PLAN_AHEAD_BATCHES, wide)


def publish_due(stage: StageSpec, step: int) -> bool:
    """True if the weights of this step are published: at the trainer's interval, for evaluations, and at the stage's
    end; in a stage without rollouts only at its end.
    """
    if stage.kind == "train":
        return step == stage.total_steps
    interval = trainer_interval(stage.synchronizer)
    return step == stage.total_steps or eval_due(stage, step) or (interval > 0 and step % interval == 0)


def eval_due(stage: StageSpec, step: int) -> bool:
    """True if an evaluation of this step's weights is due."""
    if not stage.evals or stage.kind == "train":
        return False
    if step == 0:
        return stage.eval_on_startup
    if step == stage.total_steps:
        return stage.eval_at_end
    return stage.eval_interval > 0 and step % stage.eval_interval == 0


def eval_steps(stage: StageSpec) -> Iterator[int]:
    """Yields every step with a due evaluation, in order."""
    # Without an interval only the ends remain; a range needs a positive step, also for a stage without steps.
    interval = stage.eval_interval or max(stage.total_steps, 1)
    steps = chain(range(0, stage.total_steps, interval), (stage.total_steps,))
    return (step for step in steps if eval_due(stage, step))


def rate_steps(stage: StageSpec) -> int:
    """Returns the number of steps over which learning rates are scheduled, even if the stage was shortened later."""
    return stage.full_steps or stage.total_steps


def shortened(stage: StageSpec, total_steps: int) -> StageSpec:
    """Returns the stage with at most `total_steps` steps; learning rates keep following the full length."""
    if total_steps >= stage.total_steps:
        return stage
    return msgspec.structs.replace(stage, total_steps=total_steps, full_steps=rate_steps(stage))


def next_eval_step(stage: StageSpec, after: int) -> int | None:
    """Returns the first step above `after` with a due evaluation, in a stage with held-out tasksets; None if no step
    follows.
    """
    if after < 0 and eval_due(stage, 0):
        return 0
    after = max(after, 0)
    interval = stage.eval_interval or max(stage.total_steps, 1)
    step = (after // interval + 1) * interval
    if step < stage.total_steps:
        return step
    return stage.total_steps if after < stage.total_steps and eval_due(stage, stage.total_steps) else None


def checkpoint_due(stage: StageSpec, step: int) -> bool:
    """True if a checkpoint is written after this step; always after a stage's last step.

    If the best checkpoint is kept, each evaluated version gets a checkpoint, because the best is not known yet.
    """
    interval = stage.trainer.save_interval
    chosen = stage.trainer.by_evaluation.best is not None and step > 0 and eval_due(stage, step)
    return step == stage.total_steps or (interval > 0 and step % interval == 0) or chosen
