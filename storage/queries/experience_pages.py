# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Pages of experiences in several orders, with filters, after a cursor.

Every order has an index. A page examines at most `SCAN` rows: a filter rarely met may give a page with fewer rows than
asked for, or with none, and a cursor to continue. Selective filters are answered from their own rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import msgspec

from rftd.ops.errors import UsageError
from rftd.storage.queries.books import COUNTED, GROUP
from rftd.storage.queries.cursor import Key, cursor_of, key_of
from rftd.storage.queries.experiences import COLUMNS, ExperienceRow
from rftd.storage.queries.rows import fetch, fetch_one

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

SCAN: Final = 2_000
"""Maximum number of rows examined for one page: a few milliseconds of the daemon's processor."""
NEAR_STEPS: Final = 8
"""Maximum number of steps whose experiences are read from their batches."""
STATES: Final = ("open", "late", "waiting", "cooling", "planned", "retired")
"""All states of an experience with effect."""


class RowRange(NamedTuple):
    """Rows `first` to `last` of a stage's tasks."""

    stage: int
    """Number of the stage."""
    first: int
    """The first row, counted over all tasksets of the stage."""
    last: int
    """The last row, inclusive."""


class ExperienceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a list; bounds are inclusive."""

    first_step: int | None = None
    """Lowest step of the last plan."""
    last_step: int | None = None
    """Highest step of the last plan."""
    min_reward: float | None = None
    """Lowest reward."""
    max_reward: float | None = None
    """Highest reward."""
    min_staleness_versions: int | None = None
    """Lowest staleness when planned, in versions."""
    max_staleness_versions: int | None = None
    """Highest staleness when planned, in versions."""
    stage: int | None = None
    """Number of the stage."""
    state: str | None = None
    """State of the experience, one of `STATES`."""
    group: UUID | None = None
    """Id of the group."""
    row: int | None = None
    """The row of the task, over all tasksets of the stage."""
    tasksets: tuple[RowRange, ...] | None = None
    """Ranges of rows; the task of an experience lies in one of them."""
    since_ns: int | None = None
    """Earliest time of production."""
    until_ns: int | None = None
    """Latest time of production."""
    finish: str | None = None
    """End of the response: `stop`, `length` or `prompt_truncated`."""
    version: int | None = None
    """A weight version that generated some token."""
    part: str | None = None
    """Name of a part of the reward, for the two bounds below."""
    min_part: float | None = None
    """Lowest value of the part of the reward."""
    max_part: float | None = None
    """Highest value of the part of the reward."""


class ExperiencePage(NamedTuple):
    """Some rows in order, and the cursor of the next page; None at the end."""

    items: list[ExperienceRow]
    """Experiences of the page, in order."""
    next: str | None
    """Cursor of the next page; None at the end."""


class ExperienceOrder(NamedTuple):
    """An order by columns, all in one direction, so that one index serves both directions."""

    key: tuple[str, ...]
    """Columns sorted by, the first one first."""
    kinds: tuple[type, ...]
    """Types of the columns in a cursor."""
    descending: bool
    """True for descending values of every column."""

    @property
    def column(self) -> str:
        """The column sorted by first, before the columns breaking ties."""
        return self.key[0]

    def sql(self) -> str:
        """Returns the columns after ORDER BY."""
        return ", ".join(f"e.{column}{' DESC' if self.descending else ''}" for column in self.key)


_BY_TIME: Final = ("produced_ns", "id"), (int, str)
"""Columns and types of an order by time of production."""
_BY_REWARD: Final = ("reward", "produced_ns", "id"), (float, int, str)
"""Columns and types of an order by reward, then by time of production."""
_BY_STALENESS: Final = ("staleness_versions", "produced_ns", "id"), (int, int, str)
"""Columns and types of an order by staleness when planned, then by time of production."""
ORDERS: Final = {
    "oldest": ExperienceOrder(*_BY_TIME, False),
    "newest": ExperienceOrder(*_BY_TIME, True),
    "reward": ExperienceOrder(*_BY_REWARD, False),
    "-reward": ExperienceOrder(*_BY_REWARD, True),
    "staleness": ExperienceOrder(*_BY_STALENESS, False),
    "-staleness": ExperienceOrder(*_BY_STALENESS, True),
}
"""Names of orders; those with a minus sign are descending. Only planned experiences have a staleness."""

_PART_IN_FILE: Final = "(SELECT j.value FROM json_each(e.metrics) j WHERE j.key = :part)"
"""SQL expression in SQLite: the part of the reward named `:part`."""
_PART_ON_SERVER: Final = "CAST(CAST(e.metrics AS JSON) ->> :part AS DOUBLE PRECISION)"
"""SQL expression in Postgres: the part of the reward named `:part`."""
_CONDITIONS: Final = {
    "first_step": "e.step >= :first_step",
    "last_step": "e.step <= :last_step",
    "min_reward": "e.reward >= :min_reward",
    "max_reward": "e.reward <= :max_reward",
    "min_staleness_versions": "e.staleness_versions >= :min_staleness_versions",
    "max_staleness_versions": "e.staleness_versions <= :max_staleness_versions",
    "stage": "e.stage = :stage",
    "state": "e.state = :state",
    "group": "e.group_id = :group",
    "row": "e.group_id IN (SELECT l.subject FROM leases l WHERE l.experiment = :experiment AND l.row_start = :row)",
    "since_ns": "e.produced_ns >= :since_ns",
    "until_ns": "e.produced_ns <= :until_ns",
    "finish": "e.finish = :finish",
    "version": "e.oldest_version <= :version AND e.newest_version >= :version",
    "part": "{part} IS NOT NULL",
    "min_part": "{part} >= :min_part",
    "max_part": "{part} <= :max_part",
}
"""SQL condition on `experiences e` for each field of an `ExperienceFilter`."""
_SERVED: Final = {
    "produced_ns": ("since_ns", "until_ns"),
    "reward": ("min_reward", "max_reward"),
    "staleness_versions": ("min_staleness_versions", "max_staleness_versions"),
}
"""Bounds on the column of an order, served by the order's index."""
_IN_ROWS: Final = """(e.stage = {stage} AND EXISTS (SELECT 1 FROM leases l WHERE l.subject = e.group_id
    AND l.kind = 'task' AND l.row_start BETWEEN {first} AND {last}))"""
"""SQL condition template on `experiences e`: the task lies in a range of rows of a stage."""
_BY_GROUP: Final = "SELECT DISTINCT o.group_id FROM experiences o WHERE o.group_id = :group"
"""SQL of the group named by a filter."""
_BY_ROW: Final = """SELECT DISTINCT l.subject AS group_id FROM leases l
WHERE l.experiment = :experiment AND l.row_start = :row AND l.kind = 'task'"""
"""SQL of the groups leased for a row."""
_BY_STEPS: Final = """SELECT DISTINCT i.group_id FROM batches b JOIN batch_items i ON i.batch = b.id
WHERE b.experiment = :experiment AND b.step BETWEEN :first_step AND :last_step"""
"""SQL of the groups with an item in a batch planned for a range of steps."""


class _StateTotal(msgspec.Struct, frozen=True):
    """A row with the number of an experiment's experiences in a state."""

    count: int
    """Number of experiences."""


class _LastKey(msgspec.Struct, frozen=True):
    """A row with the columns of every order, for the key of a cursor."""

    id: str
    """Id of the experience."""
    produced_ns: int
    """End of the rollout, Unix time in nanoseconds."""
    reward: float | None
    """Reward of the experience."""
    staleness_versions: int | None
    """Staleness when planned, in versions; None before a plan."""


async def list_experiences(
    connection: AsyncConnection,
    experiment: UUID,
    *,
    where: ExperienceFilter = ExperienceFilter(),  # noqa: B008 - frozen
    order: str = "newest",
    limit: int = 50,
    cursor: str | None = None,
) -> ExperiencePage:
    """Returns a page of experiences. Raises UsageError for an unknown order, CursorError."""
    if order not in ORDERS:
        raise UsageError(f"no order {order!r}", field="order", fix="use one of " + ", ".join(ORDERS))
    if where.part is None and (where.min_part is not None or where.max_part is not None):
        raise UsageError("bounds of a part of the reward need its name", field="part", fix="name it with part=")
    sorting = ORDERS[order]
    name = f"experiences of {experiment}"
    after = None if cursor is None else key_of(cursor, name, order, sorting.kinds)
    bounds = {key: bound for key, bound in msgspec.structs.asdict(where).items() if bound is not None}
    tasksets = bounds.pop("tasksets", None)
    parameters: dict[str, Any] = {"experiment": experiment.bytes, **bounds}
    if where.group is not None:
        parameters["group"] = where.group.bytes
    in_file = connection.dialect.name == "sqlite"
    source = await _source(connection, where, sorting, parameters, in_file=in_file)
    served = {*_SERVED.get(sorting.column, ()), *source.served}
    part = _PART_IN_FILE if in_file else _PART_ON_SERVER
    filters = [_CONDITIONS[key].format(part=part) for key in bounds if source.few or key not in served]
    if tasksets is not None:
        ranges = [_IN_ROWS.format(**rows._asdict()) for rows in tasksets]
        filters.append(f"({' OR '.join(ranges)})" if ranges else "1 = 0")
    # SQLite would search the order's index once for each group; a column behind a plus is in no index.
    plain = "+" if in_file and source.by_group else ""
    inner = [f"{plain}e.experiment = :experiment AND {plain}e.{sorting.column} IS NOT NULL", *source.conditions]
    inner += [_CONDITIONS[key] for key in bounds if key in _SERVED.get(sorting.column, ())]
    if after is not None:
        inner.append(_beyond(sorting, after, parameters))
    # Without a filter every row counts for the page; with one, the rows examined are bounded.
    scans = bool(filters) and not source.few
    inner += [] if scans else [COUNTED, *filters]
    candidates = f"FROM {source.tables} WHERE {' AND '.join(inner)} ORDER BY {sorting.sql()}"
    rows = await fetch(
        connection,
        ExperienceRow,
        f"""SELECT {COLUMNS} FROM (SELECT e.* FROM (
            SELECT e.* {candidates} LIMIT {SCAN if scans else limit + 1}) e
            WHERE {" AND ".join([COUNTED, *filters]) if scans else "1 = 1"} ORDER BY {sorting.sql()} LIMIT :limit) e
        {GROUP} ORDER BY {sorting.sql()}""",
        **parameters,
        limit=limit + 1,
    )
    if len(rows) > limit:
        return ExperiencePage(rows[:limit], cursor_of(name, order, _key(sorting, rows[limit - 1])))
    if not scans:
        return ExperiencePage(rows, None)
    last_sql = f"SELECT e.id, e.produced_ns, e.reward, e.staleness_versions {candidates} LIMIT 1 OFFSET {SCAN - 1}"
    last = await fetch_one(connection, _LastKey, last_sql, **parameters)
    return ExperiencePage(rows, None if last is None else cursor_of(name, order, _key(sorting, last)))


class _CandidateSource(NamedTuple):
    """The tables of candidate rows, with conditions, and the filters served by them."""

    tables: str = "experiences e"
    """SQL source of the candidates, with `experiences e`."""
    conditions: tuple[str, ...] = ()
    """SQL conditions on the candidates."""
    served: tuple[str, ...] = ()
    """Names of the filter's fields already met by all candidates."""
    few: bool = False
    """True if all candidates can be read for one page."""
    by_group: bool = False
    """True if the candidates are the members of some groups."""


async def _source(
    connection: AsyncConnection,
    where: ExperienceFilter,
    sorting: ExperienceOrder,
    parameters: dict[str, Any],
    *,
    in_file: bool,
) -> _CandidateSource:
    """Returns the narrowest source for a filter."""
    groups = None
    if where.group is not None:
        groups = _BY_GROUP
    elif where.row is not None:
        groups = _BY_ROW
    elif where.first_step is not None and where.last_step is not None:
        groups = _BY_STEPS if where.last_step - where.first_step < NEAR_STEPS else None
    if groups is not None:
        return _CandidateSource(
            f"({groups}) k CROSS JOIN experiences e", ("e.group_id = k.group_id",), few=True, by_group=True
        )
    if where.state is None or where.state == "planned":
        return _CandidateSource()
    if where.state not in STATES:
        raise UsageError(f"no state {where.state!r}", field="state", fix="use one of " + ", ".join(STATES))
    # As a literal, so that SQLite recognises the partial index.
    conditions = (f"e.state = '{where.state}' AND e.state <> 'planned'",)
    tables = "experiences e INDEXED BY experiences_state" if in_file else "experiences e"
    if sorting.column == "produced_ns":
        return _CandidateSource(tables, conditions, ("state",))
    sql = "SELECT count FROM counts WHERE experiment = :experiment AND kind = :state"
    totals = await fetch(connection, _StateTotal, sql, experiment=parameters["experiment"], state=where.state)
    few = sum(total.count for total in totals) <= SCAN
    return _CandidateSource(tables, conditions, ("state",), few=True) if few else _CandidateSource()


def _beyond(sorting: ExperienceOrder, after: Key, parameters: dict[str, Any]) -> str:
    """Returns the condition for rows beyond a key."""
    for number, (column, part) in enumerate(zip(sorting.key, after, strict=True)):
        parameters[f"after{number}"] = UUID(str(part)).bytes if column == "id" else part
    columns = ", ".join(f"e.{column}" for column in sorting.key)
    marks = ", ".join(f":after{number}" for number in range(len(after)))
    return f"({columns}) {'<' if sorting.descending else '>'} ({marks})"


def _key(sorting: ExperienceOrder, row: ExperienceRow | _LastKey) -> Key:
    """Returns the key of a row in an order, for a cursor."""
    return tuple(getattr(row, column) for column in sorting.key)
