# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""`spent_tokens`: tokens counted against an experiment's budget, for an experiment whose fold is not in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from uuid import UUID

import msgspec

from rftd.storage.queries.counting import EXECUTED
from rftd.storage.queries.rows import fetch_one
from rftd.storage.queries.stage_counts import DROPPED, TRAINED, WAITING, stage_counts

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_GROUP_MEMBER_KINDS: Final = (TRAINED, WAITING, DROPPED)
"""Kinds of experiences that are members of closed groups."""
# CAST: Postgres sums 64-bit integers as numeric, returned by the driver as Decimal.
_ROW_TOKENS_SQL: Final = f"""SELECT CAST(COALESCE(SUM(u.tokens), 0) AS BIGINT) AS tokens
FROM (SELECT MAX(t.tokens) AS tokens FROM {EXECUTED} t
    WHERE t.experiment = :experiment AND t.stage = :stage GROUP BY t.step) u"""
"""SQL of the tokens trained by a stage, each step counted once, in the generation with the most tokens."""


class _Tokens(msgspec.Struct, frozen=True):
    """A row with a sum of tokens."""

    tokens: int
    """Number of tokens."""


async def spent_tokens(connection: AsyncConnection, experiment: UUID, row_stages: Iterable[int]) -> int:
    """Returns the tokens of closed groups plus the tokens trained by the stages without rollouts, `row_stages`."""
    counts = await stage_counts(connection, experiment)
    tokens = sum(row.prompt_tokens + row.response_tokens for row in counts if row.kind in _GROUP_MEMBER_KINDS)
    for stage in row_stages:
        rows = await fetch_one(connection, _Tokens, _ROW_TOKENS_SQL, experiment=experiment.bytes, stage=stage)
        tokens += 0 if rows is None else rows.tokens
    return tokens
