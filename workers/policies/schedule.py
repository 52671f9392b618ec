"""When things are due in a stage: pure functions of its spec, used by trainer and dispatcher alike.

Steps count within the stage, from 1; step 0 is the weights with which it begins.
"""

from __future__ import annotations

from collections.abc import Iterator

from rftd.streams.spec import StageSpec, SyncSpec


def required_step(sync: SyncSpec, explore_step: int) -> int:
    """The stage step whose weights explore step e runs on, at the earliest (config.md, section 5).

    `fixed`: floor((e - 1 - offset) / interval) * interval; other styles never wait.
    """
    if sync.style != "fixed":
        return 0
    return max(0, (explore_step - 1 - sync.offset) // sync.interval * sync.interval)


def publish_due(stage: StageSpec, step: int) -> bool:
    """True if the weights of this step are announced to explorers; nobody explores while a dataset is trained."""
    if stage.kind == "train":
        return step == stage.total_steps
    return step % stage.sync.interval == 0 or step == stage.total_steps or eval_due(stage, step)


def eval_due(stage: StageSpec, step: int) -> bool:
    """True if the held-out tasksets are answered with the weights of this step."""
    if not stage.evals or stage.kind == "train":
        return False
    if step == 0:
        return stage.eval_on_startup
    if step == stage.total_steps:
        return stage.eval_at_end
    return stage.eval_interval > 0 and step % stage.eval_interval == 0


def eval_steps(stage: StageSpec) -> Iterator[int]:
    """Every step at which an evaluation is due, in order."""
    interval = stage.eval_interval or stage.total_steps
    steps = sorted({*range(0, stage.total_steps, interval), stage.total_steps})
    return (step for step in steps if eval_due(stage, step))


def checkpoint_due(stage: StageSpec, step: int) -> bool:
    """True if a checkpoint is written after this step; a stage's last step always is one."""
    interval = stage.trainer.save_interval
    return step == stage.total_steps or (interval > 0 and step % interval == 0)
