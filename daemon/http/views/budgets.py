"""The budgets of an experiment: what is spent of each, and when it pauses because time runs out or nobody looks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from rftd.daemon.cli.output.quantity import lasting
from rftd.ops.clock import Clock

if TYPE_CHECKING:
    from rftd.workers.control.budgets import BudgetUse


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One budget of an experiment."""

    field: str
    """Its field in `limits`."""
    limit: float
    """The limit in the unit of its field, with what resumes have added to it."""
    spent: float
    """The amount spent, in the unit of its field; for `unseen_days` the days since somebody looked."""
    words: str
    """`12 of 48 hours`."""
    pauses_ns: int | None
    """The time at which the experiment pauses for this budget; null if time alone does not decide."""


def rows_of(uses: Iterable[BudgetUse]) -> list[BudgetRow]:
    """The budgets that have a limit, as the API answers them."""
    return [
        BudgetRow(field=use.field, limit=use.limit, spent=use.spent, words=use.words, pauses_ns=use.pauses_ns)
        for use in uses
        if use.limit
    ]


def budget_line(row: BudgetRow, clock: Clock) -> str:
    """`12 of 48 hours (25%), pauses in 36 h`."""
    share = f" ({row.spent / row.limit:.0%})" if row.field != "unseen_days" else ""
    name = " cost" if row.field == "cost" else ""
    if row.pauses_ns is None:
        return f"{row.words}{name}{share}"
    left_s = max(0.0, (row.pauses_ns - clock.now_ns()) / 1e9)
    condition = " unless somebody looks" if row.field == "unseen_days" else ""
    return f"{row.words}{name}{share}, pauses in {lasting(left_s)}{condition}"
