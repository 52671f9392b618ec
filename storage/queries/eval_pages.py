# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Pages of evaluations in the order of weight versions, after a cursor; a fork's begin with inherited ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from rftd.storage.queries.cursor import cursor_of, key_of
from rftd.storage.queries.rows import fetch
from rftd.storage.queries.shares import shares_of
from rftd.storage.queries.steps import EVAL_COLUMNS, EvalRow, marked

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_ORDER = "version"
"""Name of the only order of evaluations in cursors."""


class EvalPage(NamedTuple):
    """Some evaluations in order, and the cursor of the next page; None at the end."""

    items: list[EvalRow]
    """Evaluations of the page, in order."""
    next: str | None
    """Cursor of the next page; None at the end."""


async def eval_page(
    connection: AsyncConnection,
    experiment: UUID,
    *,
    taskset: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> EvalPage:
    """Returns a page of evaluations. Raises CursorError."""
    name = f"evaluations of {experiment}"
    after = None if cursor is None else key_of(cursor, name, _ORDER, (int, int, int, str))
    parameters: dict[str, Any] = {} if taskset is None else {"taskset": taskset}
    chosen = "" if taskset is None else "AND taskset = :taskset"
    rows: list[tuple[int, EvalRow]] = []
    # A version may be evaluated by an ancestor and by the fork itself: the key names the share of the history.
    for number, share in enumerate(await shares_of(connection, experiment)):
        beyond: dict[str, Any] = {}
        if after is not None and number <= int(after[0]):
            if number < int(after[0]):
                continue
            beyond = {"version": after[1], "completed_ns": after[2], "id": UUID(str(after[3])).bytes}
        share_rows = await fetch(
            connection,
            EvalRow,
            f"""SELECT {EVAL_COLUMNS} FROM evals WHERE experiment = :experiment AND version <= :last {chosen}
            {"AND (version, completed_ns, id) > (:version, :completed_ns, :id)" if beyond else ""}
            ORDER BY version, completed_ns, id LIMIT :most""",
            experiment=share.experiment.bytes,
            last=share.last,
            most=limit + 1 - len(rows),
            **parameters,
            **beyond,
        )
        rows += [(number, row) for row in marked(share_rows, inherited=share.inherited)]
        if len(rows) > limit:
            number, last = rows[limit - 1]
            key = (number, last.version, last.completed_ns, last.id)
            return EvalPage([row for _, row in rows[:limit]], cursor_of(name, _ORDER, key))
    return EvalPage([row for _, row in rows], None)
