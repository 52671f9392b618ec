"""Training steps, generations and evaluations, from the spine; partial scores, from `rftd.experiences`."""

from __future__ import annotations

from typing import Final

from rftd.storage.database.tables.steps import Evals, EvalScores, Generations, Steps
from rftd.storage.projector.projections.projection import Projection, id_of, json_of, owner_of
from rftd.storage.projector.upserts import Changes, Upsert
from rftd.streams.events import experience, step
from rftd.streams.log.envelope import Decoded
from rftd.streams.log.writers import explorer_of

COMPLETED: Final = Upsert(
    Steps,
    prefix="completed",
    owns=("batch", "stage", "checksum", "sha256", "items", "tokens", "duration_s", "metrics"),
)
"""Upsert of the columns owned by `step.completed`."""
GENERATION: Final = Upsert(Generations, prefix="started", owns=("version", "checkpoint", "reason"))
"""Upsert of the columns owned by `generation.started`."""
EVALUATED: Final = Upsert(
    Evals,
    prefix="completed",
    owns=("experiment", "stage", "taskset", "version", "generation", "rows", "score", "metrics"),
)
"""Upsert of the columns owned by `eval.completed`."""
SCORED: Final = Upsert(
    EvalScores,
    prefix="scored",
    owns=("lease", "experiment", "stage", "taskset", "version", "rows", "score", "tokens_mean"),
)
"""Upsert of the columns owned by `eval.scored`."""


def _put_step(event: step.StepCompleted, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of a training step."""
    changes.put(
        COMPLETED,
        decoded,
        experiment=owner_of(decoded),
        step=event.step,
        generation=event.generation,
        batch=event.batch.bytes,
        stage=event.stage,
        checksum=event.checksum,
        sha256=event.sha256,
        items=event.items,
        tokens=event.tokens,
        duration_s=event.duration_s,
        metrics=json_of(event.metrics),
    )


def _put_generation(event: step.GenerationStarted, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of a trainer's generation."""
    changes.put(
        GENERATION,
        decoded,
        experiment=owner_of(decoded),
        generation=event.generation,
        version=event.version,
        checkpoint=event.checkpoint,
        reason=event.reason,
    )


def _put_evaluation(event: step.EvalCompleted, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of an evaluation."""
    changes.put(
        EVALUATED,
        decoded,
        id=event.eval.bytes,
        experiment=id_of(decoded.head.experiment),
        stage=event.stage,
        taskset=event.taskset,
        version=event.version,
        generation=event.generation,
        rows=event.rows,
        score=event.score,
        metrics=json_of(event.metrics),
    )


def _put_scores(event: experience.EvalScored, decoded: Decoded, changes: Changes) -> None:
    """Adds the row of the scores of some held-out rows; a writer that is no explorer adds none."""
    writer = explorer_of(decoded.head.source)
    if writer is None:
        return
    rewards = event.rewards.view()
    tokens = event.tokens.view()
    changes.put(
        SCORED,
        decoded,
        eval=event.eval.bytes,
        row_start=event.row_start,
        writer=writer,
        lease=event.lease.bytes,
        experiment=id_of(decoded.head.experiment),
        stage=event.stage,
        taskset=event.taskset,
        version=event.version,
        rows=event.rows,
        # float64 sums of a few float32 values are exact enough to be equal on every machine.
        score=float(rewards.astype("f8").sum()) / len(rewards) if len(rewards) else None,
        tokens_mean=int(tokens.astype("i8").sum()) / len(tokens) if len(tokens) else None,
    )


PROJECTION: Final = Projection(
    name="steps",
    version=2,
    tables=(Steps, Generations, Evals, EvalScores),
    handlers={
        step.StepCompleted: _put_step,
        step.GenerationStarted: _put_generation,
        step.EvalCompleted: _put_evaluation,
        experience.EvalScored: _put_scores,
    },
)
"""Projection of steps, generations, evaluations and scores of held-out rows."""
