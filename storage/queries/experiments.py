# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Experiments as shown by `rftd ls` and `rftd get`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.ops.errors import NotFoundError, UsageError
from rftd.storage.queries.books import Books, books_of
from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.cursor import cursor_of, key_of
from rftd.storage.queries.rows import fetch, fetch_one
from rftd.storage.queries.run_figures import HeldOutScore, RunFigures, figures_of

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class ExperimentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment of a list: state, progress, and recent figures."""

    id: str
    """Id of the experiment."""
    name: str
    """Name of the experiment, shared by experiments submitted again."""
    project: str
    """Name of the project."""
    state: str
    """Present state; `submitted` before the first transition."""
    reason: str | None
    """The reason of the last transition."""
    code: str | None
    """Code of the last transition, if any."""
    kept: str
    """Location of the experiment's files: `here`, `archived` or `removed`."""
    kept_path: str | None
    """The archive that holds the files, or from which they were restored."""
    stage: str | None
    """The current stage, or the last one."""
    step: int
    """The newest trained weight version."""
    total_steps: int
    """Number of steps of all stages together."""
    generation: int | None
    """Newest generation of the training history; null before the first trainer started."""
    reward_mean: float | None = None
    """The mean reward of the newest 256 experiences."""
    staleness_p95: int | None = None
    """The 95th percentile of staleness, in versions, in the newest trained batch of experiences."""
    submitted_ns: int
    """Time of the submission, Unix time in nanoseconds."""
    started_ns: int | None
    """Time of the start, Unix time in nanoseconds; null before the start."""
    state_ns: int
    """The time of the last transition, Unix time in nanoseconds."""
    labels: dict[str, str]
    """Labels of the submission, or the set given later by a command."""
    priority: int
    """Priority in the queue: as submitted, or as set later by a command."""
    queue_position: int | None
    """Position in the queue: 1 for the next experiment to start."""
    parent: str | None
    """The experiment that shares its history with this fork, up to weight version `forked_step`."""
    forked_step: int | None
    """The last weight version shared with the parent; null unless forked."""
    starred: bool = False
    """True for an experiment starred by a command."""
    signal: str | None = None
    """Name of the cause for which nothing is learnt; null while there is a learning signal."""
    reward_curve: list[float] = []
    """Mean rewards of at most 24 steps, evenly spaced, the newest last."""
    held_out: dict[str, HeldOutScore] = {}
    """The newest score on each held-out taskset."""
    trainer_idle: float | None = None
    """Share of the time between the newest steps without training."""
    explorer_idle: float | None = None
    """Share of the time of the newest 256 rollouts without a rollout under way, as a mean over explorers."""
    clipped: float | None = None
    """Mean share of clipped tokens in the newest 4 steps."""
    left_s: float | None = None
    """Seconds until the last step at the pace of the newest steps; null unless running."""


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of an experiment: settings, progress, and the best checkpoint."""

    stage: int
    """Number of the stage."""
    name: str
    """Name of the stage."""
    kind: str
    """`train` (from a dataset), `both`, or `explore` (collects experiences)."""
    algorithm: str
    """Name of the stage's algorithm."""
    total_steps: int
    """Number of steps of the stage."""
    batch_size: int
    """Number of tasks of one explore step."""
    train_batch_size: int
    """Number of items of one training step."""
    first_version: int | None
    """Weight version at the start of the stage; null before the start."""
    last_version: int | None
    """Weight version at the end of the stage; null before the end."""
    started_ns: int | None
    """Start of the stage, Unix time in nanoseconds; null before the start."""
    completed_ns: int | None
    """End of the stage, Unix time in nanoseconds; null before the end."""
    shared_steps: int = 0
    """The number of the stage's steps made by an ancestor of this fork."""
    best_version: int | None = None
    """The version with the best evaluation, whose checkpoint is kept; null unless `trainer.best_checkpoint` is set."""
    best_figure: str | None = None
    """Name of the figure compared between evaluations."""
    best_value: float | None = None
    """The figure for the best version."""
    best_base: float | None = None
    """The same figure for the initial weights of the stage."""
    best_kept: list[int] = []
    """The versions whose checkpoints are kept for their evaluation, the best first."""
    stopped_by: int | None = None
    """The version whose evaluation ended the stage before its last step."""
    stopped_reason: str | None = None
    """Reason of the early end, in words; null without one."""


class ExperimentDetail(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment in detail: summary, configuration, stages, warnings, and books."""

    summary: ExperimentSummary
    """State, progress and recent figures of the experiment."""
    job_dir: str
    """Path of the experiment's folder."""
    deterministic: bool
    """True for an experiment in deterministic mode."""
    seed: int
    """Seed of the experiment."""
    config: Any
    """The submitted specification."""
    stages: list[StageRow]
    """Stages of the experiment, in order."""
    warnings: list[str]
    """Texts of the warnings of the submission and of later ones, in order."""
    books: Books
    """Counts of the experiences of closed groups by state."""
    groups_closed: int
    """Number of closed groups."""
    generations: int
    """The number of generations: how often the training history was resumed."""
    parent_name: str | None
    """The name of the experiment from which this one was forked."""


class _Fields(msgspec.Struct, frozen=True):
    """A row with the fields of an `ExperimentDetail` read beside the summary, stages, warnings and books."""

    job_dir: str
    deterministic: bool
    seed: int
    config: Any
    groups_closed: int
    generations: int
    parent_name: str | None


class _Folder(msgspec.Struct, frozen=True):
    """A row with the path of an experiment's folder."""

    job_dir: str


class _Warning(msgspec.Struct, frozen=True):
    """A row with the text of a warning."""

    text: str


STEP: Final = f"""COALESCE((SELECT t.step FROM {EXECUTED} t WHERE t.experiment = x.id ORDER BY t.step DESC LIMIT 1),
        x.forked_step, 0)"""
"""SQL expression of the newest weight version trained by `experiments x`, or at which its fork began."""
QUEUE: Final = """LEFT JOIN (SELECT id, ROW_NUMBER() OVER (
        ORDER BY COALESCE(prioritized, priority, 0) DESC, submitted_ns, id) AS queue_position
    FROM experiments WHERE state = 'queued') q ON q.id = x.id"""
"""SQL join of the queue position of `experiments x`, 1 for the next to start; null if not queued."""

LABELS: Final = """COALESCE((SELECT l.labels FROM annotations l WHERE l.experiment = x.id AND l.experience = x.id),
        x.labels)"""
"""SQL expression of the labels of `experiments x`: those set later, or those of the submission."""
STARRED: Final = """COALESCE((SELECT s.starred FROM annotations s WHERE s.experiment = x.id AND s.experience = x.id),
        FALSE)"""
"""SQL expression: true if `experiments x` is starred."""
# Of several generations of a step the newest counts. Each figure is a subquery that reads few rows by an index: joins
# would read every step and experience of every experiment on the page.
_SUMMARY: Final = f"""
SELECT x.id, x.name, x.project, COALESCE(x.state, 'submitted') AS state, x.state_reason AS reason,
    x.state_code AS code,
    COALESCE(x.kept, 'here') AS kept, NULLIF(x.kept_path, '') AS kept_path,
    x.submitted_ns, x.started_ns, COALESCE(x.state_ns, x.submitted_ns) AS state_ns,
    x.total_steps, {LABELS} AS labels, {STARRED} AS starred, x.parent, x.forked_step,
    COALESCE(x.prioritized, x.priority, 0) AS priority, NULLIF(x.signal_cause, '') AS signal, q.queue_position,
    (SELECT s.name FROM stages s WHERE s.experiment = x.id AND s.started_offset IS NOT NULL
        ORDER BY s.stage DESC LIMIT 1) AS stage,
    {STEP} AS step,
    (SELECT MAX(g.generation) FROM generations g WHERE g.experiment = x.id) AS generation
FROM experiments x {QUEUE}
"""
"""SQL of an `ExperimentSummary` for each experiment, without figures, to be extended by conditions."""
_REWARD: Final = f"""COALESCE((SELECT {{metric}} FROM {EXECUTED} t WHERE t.experiment = x.id
    ORDER BY t.step DESC, t.generation DESC LIMIT 1), {{lowest}})"""
"""SQL expression of the mean reward of the newest trained batch."""
_METRIC_IN_FILE: Final = """json_extract(t.metrics, '$."critic/rewards/mean"')"""
"""SQL expression in SQLite: the mean reward among the metrics of `steps t`."""
_METRIC_ON_SERVER: Final = "CAST(CAST(t.metrics AS JSON) ->> 'critic/rewards/mean' AS DOUBLE PRECISION)"
"""SQL expression in Postgres: the mean reward among the metrics of `steps t`."""
_LOWEST: Final = "-1.0e300"
"""Stands for a missing reward: experiments without a trained batch of rollouts are below all others."""


class ExperimentOrder(NamedTuple):
    """An order by an SQL expression of `experiments x`, then by submission and id, all in one direction."""

    expression: str
    """SQL expression on `experiments x`, sorted by first."""
    kind: type
    """Type of the expression in a cursor."""
    descending: bool
    """True for descending values of all columns."""


ORDERS: Final = {
    "newest": ExperimentOrder("x.submitted_ns", int, True),
    "oldest": ExperimentOrder("x.submitted_ns", int, False),
    "name": ExperimentOrder("COALESCE(x.name, '')", str, False),
    "project": ExperimentOrder("COALESCE(x.project, '')", str, False),
    "state": ExperimentOrder("COALESCE(x.state, 'submitted')", str, False),
    "reward": ExperimentOrder("reward", float, False),
    "-reward": ExperimentOrder("reward", float, True),
}
"""Names of orders; the reward is that of the newest trained batch."""
_LIST: Final = "experiments"
"""Name of the list in cursors."""


class ExperimentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a list of experiments."""

    states: tuple[str, ...] = ()
    """Names of states, any of them; empty for every state."""
    labels: tuple[str, ...] = ()
    """`KEY=VALUE` or `KEY`; a returned experiment has all labels."""
    project: str | None = None
    """Name of the project."""
    words: str | None = None
    """Pieces of the name, in any order and case."""
    signal: str | None = None
    """`lost` or `present`: whether the newest batches have a learning signal."""
    min_reward: float | None = None
    """Lowest mean reward."""
    max_reward: float | None = None
    """Highest mean reward."""
    since_ns: int | None = None
    """Earliest time of submission."""
    until_ns: int | None = None
    """Latest time of submission."""
    removed: bool = False
    """True to include removed experiments."""


class ExperimentPageOfList(NamedTuple):
    """Some experiments in order, and the cursor of the next page; None at the end."""

    items: list[ExperimentSummary]
    """Experiments of the page, in order."""
    next: str | None
    """Cursor of the next page; None at the end."""


class _SortKey(msgspec.Struct, frozen=True):
    """A row with the columns of an order, for the key of a cursor."""

    id: str
    sorted_by: int | float | str
    submitted_ns: int


async def list_experiments(
    connection: AsyncConnection,
    *,
    where: ExperimentFilter = ExperimentFilter(),  # noqa: B008 - frozen
    order: str = "newest",
    limit: int = 50,
    cursor: str | None = None,
    figures: Callable[[UUID], Awaitable[RunFigures]] | None = None,
) -> ExperimentPageOfList:
    """Returns a page of experiments; `figures` returns cached figures. Raises UsageError, CursorError."""
    if order not in ORDERS:
        raise UsageError(f"no order {order!r}", field="order", fix="use one of " + ", ".join(ORDERS))
    sorting = ORDERS[order]
    metric = _METRIC_IN_FILE if connection.dialect.name == "sqlite" else _METRIC_ON_SERVER
    reward = _REWARD.format(metric=metric, lowest=_LOWEST)
    conditions, parameters = _conditions(where, reward)
    expression = reward if sorting.expression == "reward" else sorting.expression
    if cursor is not None:
        key = key_of(cursor, _LIST, order, (sorting.kind, int, str))
        conditions.append(
            f"({expression}, x.submitted_ns, x.id) {'<' if sorting.descending else '>'} (:key, :submitted, :id)"
        )
        parameters |= {"key": key[0], "submitted": key[1], "id": UUID(str(key[2])).bytes}
    down = " DESC" if sorting.descending else ""
    keys = await fetch(
        connection,
        _SortKey,
        f"""SELECT x.id AS id, {expression} AS sorted_by, x.submitted_ns FROM experiments x
        WHERE {" AND ".join(conditions)}
        ORDER BY 2{down}, x.submitted_ns{down}, x.id{down} LIMIT :limit""",
        limit=limit + 1,
        **parameters,
    )
    shown = keys[:limit]
    if not shown:
        return ExperimentPageOfList([], None)
    marks = ", ".join(f":id{number}" for number in range(len(shown)))
    ids = {f"id{number}": UUID(row.id).bytes for number, row in enumerate(shown)}
    summaries = {
        row.id: row for row in await fetch(connection, ExperimentSummary, f"{_SUMMARY} WHERE x.id IN ({marks})", **ids)
    }
    rows = []
    for row in shown:
        id = UUID(row.id)
        rows.append(with_figures(summaries[row.id], await (figures(id) if figures else figures_of(connection, id))))
    last = shown[-1]
    next_key = (last.sorted_by, last.submitted_ns, last.id)
    return ExperimentPageOfList(rows, cursor_of(_LIST, order, next_key) if len(keys) > limit else None)


def _conditions(where: ExperimentFilter, reward: str) -> tuple[list[str], dict[str, Any]]:
    """Returns the SQL conditions of a filter, and their parameters."""
    parameters: dict[str, Any] = {f"state{number}": state for number, state in enumerate(where.states)}
    conditions = ["x.submitted_offset IS NOT NULL"]
    if where.states:
        conditions.append(f"COALESCE(x.state, 'submitted') IN ({', '.join(f':{name}' for name in parameters)})")
    for number, label in enumerate(where.labels):
        # A piece of the column's JSON: quotes within a text are escaped there, so no text can contain a label.
        conditions.append(f"REPLACE({LABELS}, :label{number}, '') <> {LABELS}")
        parameters[f"label{number}"] = _label_in_json(label)
    if where.project is not None:
        conditions.append("x.project = :project")
        parameters["project"] = where.project
    for number, word in enumerate((where.words or "").lower().split()):
        conditions.append(f"REPLACE(LOWER(x.name), :word{number}, '') <> LOWER(x.name)")
        parameters[f"word{number}"] = word
    if where.signal is not None:
        conditions.append(f"COALESCE(x.signal_cause, '') {'<>' if where.signal == 'lost' else '='} ''")
    for name, bound, sign in (("least", where.min_reward, ">="), ("most", where.max_reward, "<=")):
        if bound is not None:
            conditions.append(f"{reward} {sign} :{name} AND {reward} > {_LOWEST}")
            parameters[name] = bound
    for name, bound, sign in (("since", where.since_ns, ">="), ("until", where.until_ns, "<=")):
        if bound is not None:
            conditions.append(f"x.submitted_ns {sign} :{name}")
            parameters[name] = bound
    if not where.removed:
        conditions.append("COALESCE(x.kept, 'here') <> 'removed'")
    return conditions, parameters


def with_figures(summary: ExperimentSummary, figures: RunFigures) -> ExperimentSummary:
    """Returns a line of the list with the experiment's figures."""
    left_s = None
    if summary.state == "running" and figures.step_s is not None:
        left_s = figures.step_s * max(0, summary.total_steps - summary.step)
    return msgspec.structs.replace(
        summary,
        reward_mean=figures.reward_mean,
        staleness_p95=figures.staleness_p95,
        reward_curve=figures.reward_curve,
        held_out=figures.held_out,
        trainer_idle=figures.trainer_idle,
        explorer_idle=figures.explorer_idle,
        clipped=figures.clipped,
        left_s=left_s,
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
        f"{_SUMMARY} WHERE x.submitted_offset IS NOT NULL AND x.id = :experiment",
        experiment=experiment.bytes,
    )
    if summary is None:
        raise NotFoundError(f"no experiment {experiment}")
    return with_figures(summary, await figures_of(connection, experiment))


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


class _StateCount(msgspec.Struct, frozen=True):
    """A row with the number of experiments in a state."""

    state: str
    number: int


async def count_states(connection: AsyncConnection) -> dict[str, int]:
    """Returns the numbers of experiments by state, without removed ones."""
    text = """SELECT COALESCE(x.state, 'submitted') AS state, COUNT(*) AS number FROM experiments x
        WHERE x.submitted_offset IS NOT NULL AND COALESCE(x.kept, '') <> 'removed' GROUP BY 1 ORDER BY 1"""
    return {row.state: row.number for row in await fetch(connection, _StateCount, text)}
