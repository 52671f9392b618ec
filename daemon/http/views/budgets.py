"""The budgets of an experiment: amounts spent, and the pause for lack of time or readers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from rftd.daemon.cli.output.quantity import lasting
from rftd.ops.clock import Clock

if TYPE_CHECKING:
    from rftd.workers.control.budgets import BudgetUse


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One budget of an experiment: its limit, the amount spent, and the resulting pause."""

    field: str
    """Field of the budget in `limits`."""
    limit: float
    """Limit in the unit of its field, including amounts added by resumes."""
    spent: float
    """Amount spent, in the unit of its field; for `unseen_days` the days since the last reader."""
    words: str
    """Amount and limit in words: `12 of 48 hours`."""
    pauses_ns: int | None
    """Time of the experiment's pause for this budget; null if more than time decides."""


def rows_of(uses: Iterable[BudgetUse]) -> list[BudgetRow]:
    """Returns the budgets with a limit, as answered by the API."""
    return [
        BudgetRow(field=use.field, limit=use.limit, spent=use.spent, words=use.words, pauses_ns=use.pauses_ns)
        for use in uses
        if use.limit
    ]


def budget_line(row: BudgetRow, clock: Clock) -> str:
    """Returns the budget in one line: `12 of 48 hours (25%), pauses in 36 h`."""
    share = f" ({row.spent / row.limit:.0%})" if row.field != "unseen_days" else ""
    name = " cost" if row.field == "cost" else ""
    if row.pauses_ns is None:
        return f"{row.words}{name}{share}"
    left_s = max(0.0, (row.pauses_ns - clock.now_ns()) / 1e9)
    condition = " unless somebody looks" if row.field == "unseen_days" else ""
    return f"{row.words}{name}{share}, pauses in {lasting(left_s)}{condition}"
