# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Training steps with their metrics, and evaluations. A fork's lists begin with inherited rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

import msgspec

from rftd.storage.queries.books import ITEM
from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch
from rftd.storage.queries.shares import ENDLESS, shares_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

T = TypeVar("T", "StepRow", "EvalRow")
"""Row type accepted and returned by `marked`: a step or an evaluation."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A trained step, with batch, checksums, metrics, and staleness of the batch in versions."""

    step: int
    """Weight version made by the step, counted over the whole experiment."""
    generation: int
    """Generation of the training history at the step, from 0."""
    stage: int
    """Number of the stage."""
    batch: str
    """Id of the trained batch."""
    items: int
    """Number of experiences and dataset rows in the batch."""
    tokens: int
    """Number of trained tokens, each with a gradient."""
    duration_s: float
    """Seconds of training in the step."""
    checksum: str
    """Checksum of all weights after the step: xxh3-128, or `bits:...` for tensors on a device."""
    sha256: str | None
    """SHA-256 checksum of all weights, in deterministic mode and at checkpoints; null in between."""
    metrics: dict[str, float | None]
    """Metrics reported by the trainer, by name; null for a recorded NaN or infinity."""
    completed_ns: int
    """End of the step, Unix time in nanoseconds."""
    reward_mean: float | None
    """The mean reward of the batch's experiences."""
    staleness_mean: float | None
    """Mean staleness of the batch's experiences, in versions; null without experiences."""
    staleness_p95: int | None
    """95th percentile of the staleness of the batch's experiences, in versions."""
    staleness_max: int | None
    """Maximum staleness of the batch's experiences, in versions."""
    incomplete: bool | None
    """True if `max_read_timeout` passed before the batch was full; null without a planned batch."""
    inherited: bool = False
    """True if the step was made by an ancestor of this fork."""


class EvalRow(msgspec.Struct, frozen=True, kw_only=True):
    """A completed evaluation of a weight version on a held-out taskset."""

    id: str
    """Id of the evaluation."""
    stage: int
    """Number of the stage."""
    taskset: str
    """Name of the held-out taskset."""
    version: int
    """The evaluated weight version."""
    generation: int
    """Generation of the evaluated weight version."""
    rows: int
    """Number of evaluated rows of the taskset."""
    score: float | None
    """Mean reward of the answers."""
    metrics: dict[str, float | None]
    """Further figures of the evaluation, by name; null for a recorded NaN or infinity."""
    completed_ns: int
    """End of the evaluation, Unix time in nanoseconds."""
    inherited: bool = False
    """True if the evaluation was made by an ancestor of this fork."""


EVAL_COLUMNS: Final = "id, stage, taskset, version, generation, rows, score, metrics, completed_ns"
"""Columns of an `EvalRow`, of `evals`."""
NEWEST: Final = f"""t.generation = (SELECT MAX(n.generation) FROM {EXECUTED} n
    WHERE n.experiment = t.experiment AND n.step = t.step)"""
"""SQL condition on `steps t`: its generation is the newest of its step, the only one that counts."""


async def list_steps(
    connection: AsyncConnection,
    experiment: UUID,
    *,
    first_step: int = 0,
    last_step: int = ENDLESS,
    every_generation: bool = False,
    limit: int = 10_000,
) -> list[StepRow]:
    """Returns the steps in order, each in the newest generation or in every generation."""
    rows: list[StepRow] = []
    # Share by share: an ancestor's steps after the fork share numbers with the experiment's own steps.
    for share in await shares_of(connection, experiment):
        rows += marked(
            await _steps(
                connection,
                share.experiment,
                first_step=max(first_step, share.first),
                last_step=min(last_step, share.last),
                every_generation=every_generation,
                limit=limit - len(rows),
            ),
            inherited=share.inherited,
        )
    return rows


async def _steps(
    connection: AsyncConnection,
    experiment: UUID,
    *,
    first_step: int,
    last_step: int,
    every_generation: bool,
    limit: int,
) -> list[StepRow]:
    """Returns one experiment's executed steps in a range, in order, in the newest generation or in every generation."""
    newest = "" if every_generation else f"AND {NEWEST}"
    return await fetch(
        connection,
        StepRow,
        f"""SELECT t.step, t.generation, t.stage, t.batch, t.items, t.tokens, t.duration_s, t.checksum, t.sha256,
            t.metrics, t.completed_ns, b.staleness_mean, b.staleness_p95, b.staleness_max, b.incomplete,
            (SELECT AVG(e.reward) FROM batch_items i JOIN experiences e ON {ITEM}
                WHERE i.batch = t.batch) AS reward_mean
        FROM {EXECUTED} t LEFT JOIN batches b ON b.id = t.batch
        WHERE t.experiment = :experiment AND t.step BETWEEN :first AND :last {newest}
        ORDER BY t.step, t.generation LIMIT :limit""",
        experiment=experiment.bytes,
        first=first_step,
        last=last_step,
        limit=limit,
    )


async def list_evals(
    connection: AsyncConnection, experiment: UUID, *, taskset: str | None = None, newest: int | None = None
) -> list[EvalRow]:
    """Returns the evaluations, or the `newest` of them, in the order of weight versions."""
    chosen = "AND taskset = :taskset" if taskset is not None else ""
    parameters = {"taskset": taskset} if taskset is not None else {}
    rows: list[EvalRow] = []
    # From the experiment's own evaluations back to its ancestors': enough newest ones end the search.
    for share in reversed(await shares_of(connection, experiment)):
        share_rows = await fetch(
            connection,
            EvalRow,
            f"""SELECT {EVAL_COLUMNS} FROM evals WHERE experiment = :experiment AND version <= :last {chosen}
            ORDER BY version DESC, completed_ns DESC, id DESC LIMIT :most""",
            experiment=share.experiment.bytes,
            last=share.last,
            most=ENDLESS if newest is None else newest - len(rows),
            **parameters,
        )
        rows += marked(share_rows, inherited=share.inherited)
        if newest is not None and len(rows) >= newest:
            break
    return rows[::-1]


def marked(rows: list[T], *, inherited: bool) -> list[T]:
    """Returns the rows, marked if an ancestor of a fork made them."""
    return [msgspec.structs.replace(row, inherited=True) for row in rows] if inherited else rows


class StepEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of a step, with the tokens trained."""

    step: int
    """Weight version made by the step."""
    stage: int
    """Number of the stage."""
    tokens: int
    """Number of tokens trained in the step."""
    completed_ns: int
    """End of the step, Unix time in nanoseconds."""


async def newest_steps(connection: AsyncConnection, experiment: UUID, most: int) -> list[StepEnd]:
    """Returns the newest steps of the experiment's own, at most `most`, oldest first."""
    rows = await fetch(
        connection,
        StepEnd,
        f"""SELECT t.step, t.stage, t.tokens, t.completed_ns FROM {EXECUTED} t
        WHERE t.experiment = :experiment AND {NEWEST} ORDER BY t.step DESC LIMIT :most""",
        experiment=experiment.bytes,
        most=most,
    )
    return rows[::-1]


class StepTotal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step, with the totals reached at the end."""

    step: int
    """Weight version made by the step."""
    tokens: int
    """The tokens trained in this step and all steps before, including those shared with a fork's ancestors."""
    completed_ns: int
    """End of the step, Unix time in nanoseconds."""


async def step_totals(connection: AsyncConnection, experiment: UUID) -> list[StepTotal]:
    """Returns the steps in order, each in the newest generation, with cumulative tokens."""
    totals: list[StepTotal] = []
    tokens = 0
    for share in await shares_of(connection, experiment):
        rows = await fetch(
            connection,
            StepTotal,
            f"""SELECT t.step, t.tokens, t.completed_ns FROM {EXECUTED} t
            WHERE t.experiment = :experiment AND t.step BETWEEN :first AND :last AND {NEWEST} ORDER BY t.step""",
            experiment=share.experiment.bytes,
            first=share.first,
            last=share.last,
        )
        for row in rows:
            tokens += row.tokens
            totals.append(msgspec.structs.replace(row, tokens=tokens))
    return totals
