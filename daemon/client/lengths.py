"""The answer about lengths of responses, as the command line reads it."""

from __future__ import annotations

from rftd.daemon.client.replies import Reply


class LengthSummary(Reply, frozen=True, kw_only=True):
    """Lengths of responses, in tokens."""

    count: int
    mean: float
    p50: int
    p90: int
    p99: int
    max: int


class Lengths(Reply, frozen=True, kw_only=True):
    """Lengths of responses that were generated, trained and dropped."""

    generated: LengthSummary
    trained: LengthSummary
    dropped: LengthSummary
    dropped_by_reason: dict[str, int]
    undecided: int
    never_ended: int = 0
    statistic: float
    p: float
