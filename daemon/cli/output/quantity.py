"""Ages, sizes, numbers and curves in few characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rftd.ops.clock import Clock


def age(time_ns: int | None, clock: Clock) -> str:
    """Returns the age of a point in time in a single unit: `12s`, `5m`, `3h`, `2d`; `-` for None."""
    if time_ns is None:
        return "-"
    seconds = max(0.0, (clock.now_ns() - time_ns) / 1e9)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        # From two units on: `1h` could mean anything from 60 to 119 minutes.
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def size(count_bytes: int) -> str:
    """Returns a number of bytes in words: `512 B`, `1.5 MiB`."""
    scaled = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(scaled, 1) < 1024:  # in its printed form: 1023.99 KiB is 1.0 MiB
            return f"{scaled:.0f} {unit}" if unit == "B" else f"{scaled:.1f} {unit}"
        scaled /= 1024
    return f"{scaled:.1f} TiB"


def number(figure: float | None, digits: int = 3) -> str:
    """Returns a number with a fixed number of decimal digits, or `-` for None."""
    return "-" if figure is None else f"{figure:.{digits}f}"


ID_DIGITS: Final = 8
"""Number of digits for naming random ids."""
_VERSION_DIGIT: Final = 14
"""Position of the version in a UUID's text."""
_BY_CHANCE: Final = ("4", "5")
"""Versions of ids beginning with neither a time nor a number: of a million, hardly two begin alike."""


def short(id: str) -> str:
    """Returns the beginning of an id, sufficient for verbs; the whole id for versions with common beginnings."""
    return id[:ID_DIGITS] if id[_VERSION_DIGIT : _VERSION_DIGIT + 1] in _BY_CHANCE else id


def shorts(ids: Sequence[str]) -> list[str]:
    """Returns the beginnings of these ids: all equally long, and long enough to differ from each other."""
    digits = ID_DIGITS
    while digits < max(map(len, ids), default=0) and len({id[:digits] for id in ids}) < len(set(ids)):
        digits += 1
    return [id[:digits].rstrip("-") for id in ids]


def titles_of(named: Sequence[tuple[str, str]]) -> list[str]:
    """Returns names for experiments as (name, id): repeated names with the beginning of the id."""
    names = [name for name, _ in named]
    ids = shorts([id for _, id in named])
    return [f"{name} {id}" if names.count(name) > 1 else name for name, id in zip(names, ids, strict=True)]


def lasting(seconds: float) -> str:
    """Returns a time span in its two largest units: `42 s`, `3 min 10 s`, `2 h 5 min`, `4 d 3 h`."""
    whole = max(0, round(seconds))
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    for (large, size), (small, small_size) in pairwise(units):
        if whole >= size:
            remainder = whole % size // small_size
            return f"{whole // size} {large}" + (f" {remainder} {small}" if remainder else "")
    return f"{whole} s"


BLOCKS: Final = "▁▂▃▄▅▆▇█"
"""Characters of a curve, from low to high."""


def sparkline(values: Sequence[float], *, width: int = 32, low: float | None = None, high: float | None = None) -> str:
    """Returns a curve as at most `width` blocks: neighbours are averaged, and non-finite points become blanks.

    `low` and `high` fix the scale; the default is the curve's range. A flat curve lies in the middle.
    """
    points = [_finite_mean(values[start:end]) for start, end in _bucket_ranges(len(values), width)]
    finite_points = [point for point in points if math.isfinite(point)]
    if not finite_points:
        return " " * len(points)
    floor = min(finite_points) if low is None else low
    span = (max(finite_points) if high is None else high) - floor
    return "".join(_block_of(point, floor, span) for point in points)


def _block_of(point: float, floor: float, span: float) -> str:
    """Returns the character of a point between `floor` and `floor + span`; a blank for a non-finite point."""
    if not math.isfinite(point):
        return " "
    if span <= 0:
        return BLOCKS[len(BLOCKS) // 2]
    share = min(1.0, max(0.0, (point - floor) / span))
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]


def _finite_mean(values: Sequence[float]) -> float:
    """Returns the mean of the finite points; NaN without any."""
    finite_points = [point for point in values if math.isfinite(point)]
    return sum(finite_points) / len(finite_points) if finite_points else math.nan


def _bucket_ranges(count: int, width: int) -> list[tuple[int, int]]:
    """Returns the index ranges of `count` points in at most `width` buckets."""
    if count <= width:
        return [(i, i + 1) for i in range(count)]
    return [(i * count // width, (i + 1) * count // width) for i in range(width)]
