"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, width: int = 32, low: float | None = None, high: float | None = None) -> str:
    """The values as blocks, at most `width`: neighbours are averaged, and what is not finite is a blank.

    `low` and `high` fix the scale; without them it is that of the values. A flat curve lies in the middle.
    """
    points = [_mean(values[start:end]) for start, end in _cuts(len(values), width)]
    known = [point for point in points if math.isfinite(point)]
    if not known:
        return " " * len(points)
    floor = min(known) if low is None else low
    span = (max(known) if high is None else high) - floor
    return "".join(_block(point, floor, span) for point in points)


def _block(point: float, floor: float, span: float) -> str:
    if not math.isfinite(point):
        return " "
    if span <= 0:
        return BLOCKS[len(BLOCKS) // 2]
    share = min(1.0, max(0.0, (point - floor) / span))
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _cuts(count: int, width: int) -> list[tuple[int, int]]:
    if count <= width:
        return [(i, i + 1) for i in range(count)]
    return [(i * count // width, (i + 1) * count // width) for i in range(width)]
