"""Evaluations due in a stage: a pure function of the run's folded state, used by the daemon and by the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from rftd.ops.ids import derive
from rftd.streams.folds.run_state import RunState
from rftd.streams.spec.schedule import eval_steps
from rftd.streams.spec.spec import StageSpec


def eval_id(experiment: UUID, stage: int, version: int, taskset: int) -> UUID:
    """Derives the id of the evaluation of one taskset by one weight version."""
    return derive(experiment, "eval", stage, version, taskset)


def due_evals(state: RunState, stage: StageSpec) -> Iterator[tuple[int, int]]:
    """Yields (version, taskset index) of each evaluation the stage should have by now and that is not completed, oldest
    first.
    """
    spine = state.spine
    done = min(spine.furthest, spine.last_version) - spine.first_version
    shared = spine.forked.at_step if spine.forked else -1
    through = state.evaluated_through.get(spine.stage, -1)
    complete = True
    for step in eval_steps(stage):
        version = spine.first_version + step
        if step > done:
            return
        if step <= through or version < shared:  # evaluated by the parent
            continue
        for taskset in range(len(stage.evals)):
            if version == shared and spine.forked and taskset in spine.forked.evaluated:
                continue
            if eval_id(state.experiment, spine.stage, version, taskset) not in spine.evaluated:
                complete = False
                yield version, taskset
        # Only an unbroken beginning is noted: behind a gap each step is checked again.
        if complete:
            state.evaluated_through[spine.stage] = step
