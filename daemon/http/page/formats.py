"""Numbers, times and small curves as written on the page: three digits, true minus signs, `–` for nothing yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rftd.daemon.cli.output.quantity import lasting

NONE: Final = "–"
"""Text shown for a missing figure: an en dash."""
_MINUS: Final = "−"
"""Minus sign of negative numbers."""
_NARROW: Final = "\u202f"
"""Narrow no-break space, between a number and its unit."""
SPARK_WIDTH: Final = 96
"""Width of a small curve, in pixels of its drawing."""
SPARK_HEIGHT: Final = 24
"""Height of a small curve, in pixels of its drawing."""


def fixed(figure: float | None, digits: int = 3) -> str:
    """Returns a number with a fixed number of decimal digits."""
    if figure is None or not math.isfinite(figure):
        return NONE
    return f"{figure:.{digits}f}".replace("-", _MINUS)


def signed(figure: float | None, digits: int = 3) -> str:
    """Returns a difference with its sign."""
    if figure is None or not math.isfinite(figure):
        return NONE
    return f"{figure:+.{digits}f}".replace("-", _MINUS)


def percent(share: float | None, digits: int = 0) -> str:
    """Returns a share of 1 as a percentage."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}{_NARROW}%"


def count(number: float | None) -> str:
    """Returns a whole number with separators."""
    return NONE if number is None or not math.isfinite(number) else f"{number:,.0f}"


def compact(figure: float | None) -> str:
    """Returns a large number in three digits: `11.8k`, `4.20M`."""
    if figure is None or not math.isfinite(figure):
        return NONE
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(figure) >= size:
            return f"{figure / size:.3g}{unit}"
    return f"{figure:.3g}"


def span(seconds: float | None) -> str:
    """Returns a time span in its two largest units."""
    return NONE if seconds is None else lasting(seconds)


def ordinal(number: int) -> str:
    """Returns a position: `1st`, `2nd`, `11th`."""
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{suffix}"


def scale_of(curves: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns the range shared by small curves: at least 0 to 1, the usual range of rewards."""
    finite = [point for curve in curves for point in curve if math.isfinite(point)]
    return min([0.0, *finite]), max([1.0, *finite])


def spark_points(curve: Sequence[float], scale: tuple[float, float]) -> str:
    """Returns a small curve as points of an SVG polyline, `SPARK_WIDTH` by `SPARK_HEIGHT`."""
    low, high = scale
    step = (SPARK_WIDTH - 6) / max(1, len(curve) - 1)
    points = [(1 + number * step, (point - low) / (high - low)) for number, point in enumerate(curve)]
    return " ".join(
        f"{x:.1f},{SPARK_HEIGHT - 3 - (SPARK_HEIGHT - 6) * up:.1f}" for x, up in points if math.isfinite(up)
    )
