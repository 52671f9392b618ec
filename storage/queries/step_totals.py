# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`step_totals`: the trained tokens and the time of each step since the beginning, to compare experiments by."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch
from rftd.storage.queries.shares import shares_of
from rftd.storage.queries.steps import NEWEST

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class StepTotal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step, with what it took to come so far."""

    step: int
    tokens: int
    """The tokens trained in this step and all steps before, shared ones of a fork's ancestors included."""
    completed_ns: int


async def step_totals(connection: AsyncConnection, experiment: UUID) -> list[StepTotal]:
    """The steps in order, each in its newest generation."""
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
