"""`WorkUnderWay`: rollouts or held-out rows under way, with tokens drawn meanwhile, and the words for them."""

from __future__ import annotations

import msgspec


class WorkUnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of evaluations, or rollouts of open groups, with the tokens drawn by the explorers meanwhile."""

    kind: str
    """`rows` of held-out tasksets, or `rollouts`."""
    ended: int
    """Number of rows or rollouts ended."""
    total: int
    """Number of rows or rollouts, ended ones included."""
    tokens: int
    """Tokens drawn since the last end of a rollout or row, as of the last heartbeats."""
    tokens_per_s: float | None
    """Tokens drawn per second over the last half minute; null before two heartbeats."""
    longest_s: float | None
    """Seconds until the newest answers end at this rate if they reach the greatest length; null without a rate, an
    answer being drawn, or a greatest length.
    """


def work_words(work: WorkUnderWay) -> str:
    """Returns the words for work under way: counts, tokens and the time of the longest answers, as far as known.

    `0 of 64 rows` without a rate; `0 of 64 rows; 5,100 tokens at 44/s; the longest rows need about 6 min` before the
    first end; `12 of 64 rows; 44 tokens/s; the longest rows need about 6 min` after it.
    """
    # Late, as in the views: most importers need the struct only.
    from rftd.daemon.cli.output.quantity import lasting

    words = f"{work.ended} of {work.total} {work.kind}"
    if work.tokens_per_s is None:
        return words
    # Once some have ended, the share of ended ones says more than tokens of the others.
    rate = f"{work.tokens_per_s:,.0f}/s"
    words += f"; {rate.removesuffix('/s')} tokens/s" if work.ended else f"; {work.tokens:,} tokens at {rate}"
    if work.longest_s is not None and work.ended < work.total:
        words += f"; the longest {work.kind} need about {lasting(work.longest_s)}"
    return words
