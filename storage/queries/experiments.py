# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Experiments as shown by `rftd ls` and `rftd get`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError
from rftd.storage.queries.books import HELD, Books, books_of
from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch, fetch_one

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

RECENT_EXPERIENCES: Final = 256
"""Number of newest experiences in an experiment's mean reward."""


class ExperimentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment of a list: state, progress, and recent figures."""

    id: str
    name: str
    project: str
    state: str
    reason: str | None
    """The reason of the last transition."""
    code: str | None
    kept: str
    """Location of the experiment's files: `here`, `archived` or `removed`."""
    kept_path: str | None
    """The archive that holds the files, or from which they were restored."""
    stage: str | None
    """The current stage, or the last one."""
    step: int
    """The newest trained weight version."""
    total_steps: int
    generation: int | None
    reward_mean: float | None
    """The mean reward of the newest 256 experiences."""
    staleness_p95: int | None
    """The 95th percentile of staleness, in versions, in the newest trained batch of experiences."""
    submitted_ns: int
    started_ns: int | None
    state_ns: int
    """The time of the last transition, Unix time in nanoseconds."""
    labels: dict[str, str]
    """Labels of the submission, or the set given later by a command."""
    priority: int
    queue_position: int | None
    """Position in the queue: 1 for the next experiment to start."""
    parent: str | None
    """The experiment that shares its history with this fork, up to weight version `forked_step`."""
    forked_step: int | None
    starred: bool = False
    """True for an experiment starred by a command."""


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of an experiment: settings, progress, and the best checkpoint."""

    stage: int
    name: str
    kind: str
    algorithm: str
    total_steps: int
    batch_size: int
    train_batch_size: int
    first_version: int | None
    last_version: int | None
    started_ns: int | None
    completed_ns: int | None
    shared_steps: int = 0
    """The number of the stage's steps made by an ancestor of this fork."""
    best_version: int | None = None
    """The version with the best evaluation, whose checkpoint is kept; null unless `trainer.best_checkpoint` is set."""
    best_figure: str | None = None
    best_value: float | None = None
    best_base: float | None = None
    """The same figure for the initial weights of the stage."""
    best_kept: list[int] = []
    """The versions whose checkpoints are kept for their evaluation, the best first."""
    stopped_by: int | None = None
    """The version whose evaluation ended the stage before its last step."""
    stopped_reason: str | None = None


class ExperimentDetail(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment in detail: summary, configuration, stages, warnings, and books."""

    summary: ExperimentSummary
    job_dir: str
    deterministic: bool
    seed: int
    config: Any
    stages: list[StageRow]
    warnings: list[str]
    books: Books
    groups_closed: int
    generations: int
    """The number of generations: how often the training history was resumed."""
    parent_name: str | None
    """The name of the experiment from which this one was forked."""


class _Fields(msgspec.Struct, frozen=True):
    job_dir: str
    deterministic: bool
    seed: int
    config: Any
    groups_closed: int
    generations: int
    parent_name: str | None


class _Folder(msgspec.Struct, frozen=True):
    job_dir: str


class _Warning(msgspec.Struct, frozen=True):
    text: str


STEP: Final = f"""COALESCE((SELECT t.step FROM {EXECUTED} t WHERE t.experiment = x.id ORDER BY t.step DESC LIMIT 1),
        x.forked_step, 0)"""
"""SQL expression of the newest weight version trained by `experiments x`, or at which its fork began."""
QUEUE_POSITION: Final = """CASE WHEN x.state = 'queued' THEN 1 + (SELECT COUNT(*) FROM experiments q
        WHERE q.state = 'queued' AND (-COALESCE(q.prioritized, q.priority, 0), q.submitted_ns, q.id)
            < (-COALESCE(x.prioritized, x.priority, 0), x.submitted_ns, x.id)) END"""
"""SQL expression of the queue position of `experiments x`, 1 for the next to start; null if not queued."""

LABELS: Final = """COALESCE((SELECT l.labels FROM annotations l WHERE l.experiment = x.id AND l.experience = x.id),
        x.labels)"""
"""SQL expression of the labels of `experiments x`: those set later, or those of the submission."""
STARRED: Final = """COALESCE((SELECT s.starred FROM annotations s WHERE s.experiment = x.id AND s.experience = x.id),
        FALSE)"""
# Of several generations of a step the newest counts. Each figure is a subquery that reads few rows by an index: joins
# would read every step and experience of every experiment on the page.
_SUMMARY: Final = f"""
SELECT x.id, x.name, x.project, COALESCE(x.state, 'submitted') AS state, x.state_reason AS reason,
    x.state_code AS code,
    COALESCE(x.kept, 'here') AS kept, NULLIF(x.kept_path, '') AS kept_path,
    x.submitted_ns, x.started_ns, COALESCE(x.state_ns, x.submitted_ns) AS state_ns,
    x.total_steps, {LABELS} AS labels, {STARRED} AS starred, x.parent, x.forked_step,
    COALESCE(x.prioritized, x.priority, 0) AS priority,
    {QUEUE_POSITION} AS queue_position,
    (SELECT s.name FROM stages s WHERE s.experiment = x.id AND s.started_offset IS NOT NULL
        ORDER BY s.stage DESC LIMIT 1) AS stage,
    {STEP} AS step,
    (SELECT MAX(g.generation) FROM generations g WHERE g.experiment = x.id) AS generation,
    (SELECT AVG(r.reward) FROM (SELECT e.reward FROM experiences e WHERE e.experiment = x.id AND {HELD}
        ORDER BY e.produced_ns DESC LIMIT :recent) r) AS reward_mean,
    (SELECT b.staleness_p95 FROM {EXECUTED} t JOIN batches b ON b.id = t.batch
        WHERE t.experiment = x.id AND b.staleness_p95 IS NOT NULL
        ORDER BY t.step DESC, t.generation DESC LIMIT 1) AS staleness_p95
FROM experiments x WHERE x.submitted_offset IS NOT NULL
"""


async def list_experiments(
    connection: AsyncConnection,
    *,
    states: tuple[str, ...] = (),
    labels: tuple[str, ...] = (),
    removed: bool = False,
    limit: int = 50,
    offset: int = 0,
) -> list[ExperimentSummary]:
    """Returns the experiments, newest first, optionally only in some states, or including removed experiments.

    `labels` are `KEY=VALUE` or `KEY`; a returned experiment has all labels.
    """
    parameters = {f"state{number}": state for number, state in enumerate(states)}
    chosen = ", ".join(f":{name}" for name in parameters)
    where = f" AND COALESCE(x.state, 'submitted') IN ({chosen})" if states else ""
    for number, label in enumerate(labels):
        # A piece of the column's JSON: quotes within a text are escaped there, so no text can contain a label.
        where += f" AND REPLACE({LABELS}, :label{number}, '') <> {LABELS}"
        parameters[f"label{number}"] = _label_in_json(label)
    where += "" if removed else " AND COALESCE(x.kept, 'here') <> 'removed'"
    return await fetch(
        connection,
        ExperimentSummary,
        f"{_SUMMARY}{where} ORDER BY x.submitted_ns DESC, x.id LIMIT :limit OFFSET :skip",
        recent=RECENT_EXPERIENCES,
        limit=limit,
        skip=offset,
        **parameters,
    )


def _label_in_json(label: str) -> str:
    """Returns a label as a piece of the column's JSON text."""
    key, equals, label_text = label.partition("=")
    text = msgspec.json.encode(key).decode() + ":"
    return text + msgspec.json.encode(label_text).decode() if equals else text


async def get_summary(connection: AsyncConnection, experiment: UUID) -> ExperimentSummary:
    """Returns an experiment's line of the list. Raises NotFoundError."""
    summary = await fetch_one(
        connection,
        ExperimentSummary,
        f"{_SUMMARY} AND x.id = :experiment",
        recent=RECENT_EXPERIENCES,
        experiment=experiment.bytes,
    )
    if summary is None:
        raise NotFoundError(f"no experiment {experiment}")
    return summary


async def get_experiment(connection: AsyncConnection, experiment: UUID, books: Books | None = None) -> ExperimentDetail:
    """Returns everything shown on an experiment's page, with the given `books` or freshly read books. Raises
    NotFoundError.
    """
    key = experiment.bytes
    summary = await get_summary(connection, experiment)
    fields = await fetch(
        connection,
        _Fields,
        """SELECT x.job_dir, x.deterministic, x.seed, x.config,
            COALESCE((SELECT c.count FROM counts c WHERE c.experiment = x.id AND c.kind = 'groups'), 0)
                AS groups_closed,
            (SELECT COUNT(*) FROM generations n WHERE n.experiment = x.id) AS generations,
            (SELECT p.name FROM experiments p WHERE p.id = x.parent) AS parent_name
        FROM experiments x WHERE x.id = :experiment""",
        experiment=key,
    )
    warnings = await fetch(
        connection,
        _Warning,
        "SELECT text FROM warnings WHERE experiment = :experiment ORDER BY warned_offset, number",
        experiment=key,
    )
    return ExperimentDetail(
        summary=summary,
        job_dir=fields[0].job_dir,
        deterministic=fields[0].deterministic,
        seed=fields[0].seed,
        config=fields[0].config,
        stages=_with_shared(await list_stages(connection, experiment), summary.forked_step or 0),
        warnings=list(dict.fromkeys(warning.text for warning in warnings)),  # of the submission, and later
        books=await books_of(connection, experiment) if books is None else books,
        groups_closed=fields[0].groups_closed,
        generations=fields[0].generations,
        parent_name=fields[0].parent_name,
    )


async def job_dir_of(connection: AsyncConnection, experiment: UUID) -> str:
    """Returns the folder of an experiment's files. Raises NotFoundError."""
    sql = "SELECT job_dir FROM experiments WHERE id = :experiment AND submitted_offset IS NOT NULL"
    row = await fetch_one(connection, _Folder, sql, experiment=experiment.bytes)
    if row is None:
        raise NotFoundError(f"no experiment {experiment}")
    return row.job_dir


def _with_shared(stages: list[StageRow], shared: int) -> list[StageRow]:
    """Marks the first `shared` steps, stage by stage, as shared with the fork's parent."""
    rows = []
    first = 0
    for stage in stages:
        steps = min(stage.total_steps, max(0, shared - first))
        if steps:
            over = first + steps if steps == stage.total_steps else stage.last_version
            stage = msgspec.structs.replace(stage, first_version=first, last_version=over, shared_steps=steps)
        rows.append(stage)
        first += stage.total_steps
    return rows


async def list_stages(connection: AsyncConnection, experiment: UUID) -> list[StageRow]:
    """Returns the stages of an experiment in order of execution."""
    return await fetch(
        connection,
        StageRow,
        """SELECT stage, name, kind, algorithm, total_steps, batch_size, train_batch_size, first_version, last_version,
            started_ns, completed_ns, best_version, best_figure, best_value, best_base, best_kept, stopped_by,
            stopped_reason
        FROM stages WHERE experiment = :experiment AND submitted_offset IS NOT NULL ORDER BY stage""",
        experiment=experiment.bytes,
    )
