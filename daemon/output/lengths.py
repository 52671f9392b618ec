"""Lengths of responses, generated and trained, as a small table and a verdict."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from rftd.daemon.client.lengths import Lengths
from rftd.daemon.output.table import table

BIASED_BELOW = 0.05
"""Of p."""


def render(lengths: Lengths) -> RenderableType:
    """Three rows, and what they mean."""
    headers = ("RESPONSES", "COUNT", "MEAN", "P50", "P90", "P99", "MAX")
    rows = [
        (name, str(row.count), f"{row.mean:.1f}", str(row.p50), str(row.p90), str(row.p99), str(row.max))
        for name, row in (("generated", lengths.generated), ("trained", lengths.trained), ("dropped", lengths.dropped))
    ]
    reasons = ", ".join(f"{reason} {count}" for reason, count in lengths.dropped_by_reason.items())
    lines = [Text(f"dropped: {reasons}")] if reasons else []
    if lengths.undecided:
        lines.append(Text(f"not decided yet: {lengths.undecided}"))
    if lengths.never_ended:
        lines.append(Text(f"never ended (failed, timed out, given up): {lengths.never_ended}, of unknown length"))
    return Group(table(headers, rows, right=frozenset(headers[1:])), *lines, Text(verdict(lengths)))


def verdict(lengths: Lengths) -> str:
    """Whether drops were biased, in words."""
    if not lengths.dropped.count or not lengths.trained.count:
        return "drop bias: nothing was dropped" if lengths.trained.count else "drop bias: nothing was trained yet"
    biased = lengths.p < BIASED_BELOW
    word = "NOT like the rest" if biased else "like the rest"
    return f"drop bias: KS {lengths.statistic:.4f}, p {lengths.p:.2g}: what was dropped is {word}"
