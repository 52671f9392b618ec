"""`stage_line`: the stages of an experiment in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rftd.streams.spec.spec import ExperimentSpec, StageSpec


def stage_line(spec: ExperimentSpec) -> str:
    """Returns the stages in order: `warmup (sft, 20 steps) then rft (grpo, 2 epochs)`."""
    return " then ".join(f"{stage.name} ({_work_words(stage)})" for stage in spec.stages)


def _work_words(stage: StageSpec) -> str:
    """Returns algorithm and length of a stage: `sft, 20 steps`."""
    if stage.kind == "explore" and stage.taskset is None:
        return "evaluations alone"
    count = stage.total_steps or stage.total_epochs
    unit = "step" if stage.total_steps else "epoch"
    return f"{stage.algorithm.kind}, {count} {unit}{'s' if count != 1 else ''}"
