# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""The drop bias of an experiment: whether trained responses are as long as all generated responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from rftd.storage.queries.books import COUNTED
from rftd.storage.queries.rows import fetch, fetch_one

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

_UNDECIDED = ("open", "waiting")
"""States of experiences neither trained nor dropped yet."""


class LengthSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The lengths of some responses, in tokens; every figure is 0 without responses."""

    count: int
    """Number of responses."""
    mean: float
    """Mean length, in tokens."""
    p50: int
    """Median length, in tokens."""
    p90: int
    """90th percentile of the lengths, in tokens."""
    p99: int
    """99th percentile of the lengths, in tokens."""
    max: int
    """Maximum length, in tokens."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """The response lengths of decided experiences: generated = trained + dropped."""

    generated: LengthSummary
    """Response lengths of trained and dropped experiences together."""
    trained: LengthSummary
    """Experiences planned at least once."""
    dropped: LengthSummary
    """Experiences retired before they were planned, or late: their group was closed without them."""
    dropped_by_reason: dict[str, int]
    """Number of dropped experiences, by reason of the retirement; `late` for late ones."""
    undecided: int
    """Experiences that are waiting, or whose group is open; in none of the three summaries."""
    never_ended: int
    """Rollouts of closed groups that failed, timed out or were cancelled: their lengths are unknown. A limit that ends
    slow rollouts favours short answers, which the test cannot see.
    """
    statistic: float
    """The largest gap between the distribution functions of generated and trained lengths (Kolmogorov-Smirnov)."""
    p: float
    """The probability of a gap at least this large if drops were independent of length; below 0.05, drops depend on
    length.
    """


class _LengthCount(msgspec.Struct, frozen=True):
    """A row with the number of experiences of equal length, state, reason and use."""

    tokens: int
    """Length of the responses, in tokens."""
    state: str
    """State of the experiences."""
    reason: str | None
    """Reason of the retirement; None unless retired."""
    used: int
    """1 for experiences planned at least once, else 0."""
    count: int
    """Number of experiences."""


class _Rollouts(msgspec.Struct, frozen=True):
    """A row with the number of rollouts of closed groups."""

    rollouts: int
    """Number of members and failed rollouts."""


async def lengths_of(connection: AsyncConnection, experiment: UUID, *, stage: int | None = None) -> Lengths:
    """Returns the response lengths of an experiment, or of a stage. Reads every experience."""
    from rftd.ops.two_samples import ks_of_counts  # late: it needs NumPy, and the command line needs only `Lengths`

    # Counted by length in the database: the test needs no more, and an experiment may have millions of experiences.
    rows = await fetch(
        connection,
        _LengthCount,
        f"""SELECT e.response_tokens AS tokens, e.state AS state, e.retired_reason AS reason,
            CASE WHEN e.uses > 0 THEN 1 ELSE 0 END AS used, COUNT(*) AS count
        FROM experiences e
        WHERE e.experiment = :experiment AND {COUNTED} {"" if stage is None else "AND e.stage = :stage"}
        GROUP BY 1, 2, 3, 4""",
        experiment=experiment.bytes,
        **({} if stage is None else {"stage": stage}),
    )
    trained: dict[int, int] = {}
    dropped: dict[int, int] = {}
    reasons: dict[str, int] = {}
    undecided = closed = 0
    for row in rows:
        closed += row.count if row.state != "open" else 0
        if row.used:
            trained[row.tokens] = trained.get(row.tokens, 0) + row.count
        elif row.state in _UNDECIDED:
            undecided += row.count
        else:
            dropped[row.tokens] = dropped.get(row.tokens, 0) + row.count
            reason = row.reason or row.state
            reasons[reason] = reasons.get(reason, 0) + row.count
    generated = {tokens: trained.get(tokens, 0) + dropped.get(tokens, 0) for tokens in trained.keys() | dropped.keys()}
    lengths = sorted(generated)
    test = ks_of_counts([generated[length] for length in lengths], [trained.get(length, 0) for length in lengths])
    return Lengths(
        generated=length_summary(generated),
        trained=length_summary(trained),
        dropped=length_summary(dropped),
        dropped_by_reason=dict(sorted(reasons.items())),
        undecided=undecided,
        never_ended=await _rollouts(connection, experiment, stage) - closed,
        statistic=test.statistic,
        p=test.p,
    )


async def _rollouts(connection: AsyncConnection, experiment: UUID, stage: int | None) -> int:
    """Returns the number of rollouts of closed groups."""
    total = await fetch_one(
        connection,
        _Rollouts,
        f"""SELECT CAST(COALESCE(SUM(members + failed), 0) AS BIGINT) AS rollouts FROM groups
        WHERE experiment = :experiment {"" if stage is None else "AND stage = :stage"}""",
        experiment=experiment.bytes,
        **({} if stage is None else {"stage": stage}),
    )
    return 0 if total is None else total.rollouts


def length_summary(counts: Mapping[int, int]) -> LengthSummary:
    """Returns the summary of lengths in tokens, from their counts."""
    total = sum(counts.values())
    lengths = sorted(counts)
    if not total:
        return LengthSummary(count=0, mean=0.0, p50=0, p90=0, p99=0, max=0)

    def quantile(percent: int) -> int:
        """Returns the smallest length not exceeded by at least `percent` per cent of the responses."""
        covered = 0
        for length in lengths:
            covered += counts[length]
            if covered * 100 >= total * percent:
                return length
        raise AssertionError(percent)

    return LengthSummary(
        count=total,
        mean=sum(length * count for length, count in counts.items()) / total,
        p50=quantile(50),
        p90=quantile(90),
        p99=quantile(99),
        max=lengths[-1],
    )
