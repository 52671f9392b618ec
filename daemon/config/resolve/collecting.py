"""`mode: explore` with `explorer.collect_only`: a stage that keeps what is explored, and trains nothing."""

from __future__ import annotations

import msgspec

from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.experiment import Experiment
from rftd.streams.spec import PolicySpec, StageSpec, SyncSpec


def collects(experiment: Experiment, notes: Notes) -> bool:
    """True if the stage is to collect only."""
    if not experiment.explorer.collect_only:
        return False
    if experiment.mode != "explore":
        what = f"is true, but mode is {experiment.mode}: what explorers do is trained on"
        notes.wrong(("explorer", "collect_only"), what, "write mode: explore, or collect_only: false")
        return False
    return True


def collecting(stage: StageSpec, notes: Notes) -> StageSpec:
    """The same tasks and the same explorers, without steps: it ends when every task has been tried."""
    if stage.evals:
        notes.warn("explorer.collect_only: nothing is trained, so eval_tasksets are not evaluated")
    return msgspec.structs.replace(
        stage,
        kind="explore",
        total_steps=0,
        collect_groups=stage.total_steps * stage.batch_size,
        dataset=None,
        expert_rows=0,
        evals=(),
        eval_interval=0,
        eval_on_startup=False,
        policy=PolicySpec(min_group_members=stage.policy.min_group_members),
        sync=SyncSpec(method="checkpoint", style="fully_async"),
    )
