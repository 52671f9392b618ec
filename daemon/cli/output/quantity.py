"""Ages, sizes, numbers and curves in few characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rftd.ops.clock import Clock


def age(time_ns: int | None, clock: Clock) -> str:
    """The age of a point in time: `12s`, `5m`, `3h`, `2d`."""
    if time_ns is None:
        return "-"
    seconds = max(0.0, (clock.now_ns() - time_ns) / 1e9)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        # From two units on: `1h` could be anything from 60 to 119 minutes.
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def size(count_bytes: int) -> str:
    """Bytes: `512 B`, `1.5 MiB`."""
    value = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(value, 1) < 1024:  # as it is printed: 1023.99 KiB is 1.0 MiB
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or `-` for none."""
    return "-" if value is None else f"{value:.{digits}f}"


ID_DIGITS: Final = 8
"""The digits by which an id is named where nothing but chance decides them."""
_VERSION_DIGIT: Final = 14
_BY_CHANCE: Final = ("4", "5")
"""Versions of ids that begin with neither a time nor a number: of a million, hardly two begin alike."""


def short(id: str) -> str:
    """The beginning of an id, by which verbs find it again; the whole id where many begin alike."""
    return id[:ID_DIGITS] if id[_VERSION_DIGIT : _VERSION_DIGIT + 1] in _BY_CHANCE else id


def shorts(ids: Sequence[str]) -> list[str]:
    """The beginnings of these ids: all of one length, and as long as it takes for no two to be the same."""
    digits = ID_DIGITS
    while digits < max(map(len, ids), default=0) and len({id[:digits] for id in ids}) < len(set(ids)):
        digits += 1
    return [id[:digits].rstrip("-") for id in ids]


def lasting(seconds: float) -> str:
    """A time span in its two largest units: `42 s`, `3 min 10 s`, `2 h 5 min`, `4 d 3 h`."""
    whole = max(0, round(seconds))
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    for (large, size), (small, part) in pairwise(units):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


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
