"""Evaluations of weight versions: leases of held-out rows, and the figures of complete evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from rftd.ops import limits
from rftd.ops.ids import derive
from rftd.streams.events.step import WORTHLESS, EvalCompleted
from rftd.streams.events.task import EvalLeased
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.figures.eval_figures import figures_of
from rftd.streams.folds.evals import Evaluation
from rftd.streams.folds.evaluations import due_evals, eval_id
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.decision import Decision, slot_partition
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.workers.control.holds import EvalAwaitsExplorer, EvalAwaitsWeights, EvalHold, EvalUnderWay
from rftd.workers.control.leasing import LEASE_GRACE_S


def complete_evals(state: RunState) -> Iterator[Decision]:
    """Yields an eval.completed, with its figures, for each evaluation whose rows are all scored."""
    assert state.spine.spec is not None
    for id, evaluation in state.evals.open.items():
        taskset = _taskset_of(state.spine.spec, evaluation)
        if taskset is None:
            continue  # a foreign process answered an evaluation never asked for
        if evaluation.rows_scored() < taskset.rows:
            continue
        # Chunks may have been answered on weights of several generations: the newest one stands for the whole.
        generation = max(scored.generation for scored in evaluation.scores.values())
        yield Decision(
            EvalCompleted(
                eval=id,
                stage=evaluation.stage,
                taskset=taskset.name,
                version=evaluation.version,
                generation=generation,
                rows=taskset.rows,
                score=evaluation.mean_reward(),
                metrics=_figures(id, evaluation),
            )
        )


def _figures(id: UUID, evaluation: Evaluation) -> dict[str, float]:
    """Returns the figures of a complete evaluation: mean length, means of the reward's parts, accuracy, uncertainty,
    and counts of worthless answers.

    Worthless are failed answers and answers to a cut prompt; a count of 0 is left out.
    """
    scores = evaluation.scores.values()
    counts = {name: sum(chunk.metrics.get(name, 0.0) for chunk in scores) for name in WORTHLESS}
    worthless = {name: count for name, count in counts.items() if count}
    lengths = {"response_length/mean": evaluation.mean_tokens()}
    return lengths | evaluation.reward_parts() | figures_of(evaluation.in_order(), id) | worthless


def _taskset_of(spec: ExperimentSpec, evaluation: Evaluation) -> TasksetSpec | None:
    """Returns the taskset named by the evaluation; None if the experiment has no such taskset."""
    if not 0 <= evaluation.stage < len(spec.stages) or not evaluation.scores:
        return None
    evals = spec.stages[evaluation.stage].evals
    return evals[evaluation.taskset] if 0 <= evaluation.taskset < len(evals) else None


def _chunk_rows(taskset: TasksetSpec) -> int:
    """Returns the number of held-out rows in one lease: fewer for tasksets with several answers per row."""
    return max(1, limits.EVAL_CHUNK_ROWS // max(1, taskset.repeat_times))


def lease_evals(
    state: RunState, stage: StageSpec, explorers: list[WorkerStarted]
) -> tuple[list[Decision], EvalHold | None]:
    """Returns new leases of held-out rows, at most one per explorer at a time, and the hold of the oldest incomplete
    evaluation.

    The hold is None if no evaluation is due.
    """
    leases: list[Decision] = []
    if not stage.evals:
        return leases, None
    # One chunk at a time: training continues beside an evaluation, and must not queue behind all of its rows.
    busy = {lease.worker for evaluation in state.evals.open.values() for lease in evaluation.leases.values()}
    idle = [worker for worker in explorers if worker.worker not in busy]
    oldest: EvalHold | None = None
    for version, taskset in due_evals(state, stage):
        published = state.weights.of_version(version, state.spine)
        if published is None or published.version != version:
            oldest = oldest or EvalAwaitsWeights(version, taskset)
            continue
        id = eval_id(state.experiment, state.spine.stage, version, taskset)
        evaluation = state.evals.open.get(id)
        rows = stage.evals[taskset].rows
        chunk_rows = _chunk_rows(stage.evals[taskset])
        leased = {lease.row_start for lease in evaluation.leases.values()} if evaluation else set()
        begun = leased | evaluation.scores.keys() if evaluation else leased
        starts = [start for start in range(0, rows, chunk_rows) if start not in begun]
        if oldest is None:
            if leased or idle or not starts:
                oldest = EvalUnderWay(version, taskset)
            else:
                oldest = EvalAwaitsExplorer(version, taskset, len(explorers))
        for start in starts:
            if not idle:
                return leases, oldest
            worker = idle.pop(0)
            attempt = (evaluation.attempts.get(start, 0) if evaluation else 0) + 1
            event = EvalLeased(
                lease=derive(id, "lease", start, attempt),
                slot=worker.slot,
                worker=worker.worker,
                eval=id,
                stage=state.spine.stage,
                taskset=taskset,
                row_start=start,
                row_end=min(start + chunk_rows, rows),
                version=version,
                generation=published.generation,
                attempt=attempt,
                deadline_s=stage.rollout.max_timeout_s + LEASE_GRACE_S,
                digest=stage.evals[taskset].digest,
            )
            leases.append(Decision(event, slot_partition(worker.slot)))
    return leases, oldest
