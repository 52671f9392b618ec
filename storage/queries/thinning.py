"""`Grid` and `Bands`: a long series in a few buckets, each with minimum, maximum, mean and quantiles."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
"""A series of numbers, one per point or bucket."""

_ROUNDING: Final = 1e-9
"""Added to quotients, in buckets: a whole step times a reciprocal may fall just below its bucket."""
DIGITS: Final = 6
"""Significant digits of a figure in a series: far below a pixel, and half the bytes of all digits."""


class Grid(NamedTuple):
    """Buckets of equal width over a range of steps, tokens or seconds, shared by all lines of an answer."""

    first: float
    """Begin of the first bucket, in steps, tokens or seconds."""
    width: float
    """Width of a bucket, in the unit of `first`."""
    buckets: int
    """Number of buckets."""
    whole: bool
    """True for steps and tokens: a bucket ends before the first unit of the next; the last of seconds has its end."""

    @classmethod
    def over(cls, first: float, last: float, points: int, *, whole: bool) -> Grid:
        """Returns at most `points` buckets from `first` to `last`, of a whole number of units if `whole`."""
        if whole:
            width = max(1, -(-int(last - first + 1) // points))
            return cls(first, width, -(-int(last - first + 1) // width), whole)
        return cls(first, (last - first) / points or 1.0, points if last > first else 1, whole)

    def bucket_of(self, at: Column) -> NDArray[np.int16]:
        """Returns the bucket of each position; the last position belongs to the last bucket."""
        # By one multiplication: a floor division of floats costs twenty times as much.
        return np.minimum(((at - self.first) * (1 / self.width) + _ROUNDING).astype(np.int16), self.buckets - 1)

    def ends(self) -> Column:
        """Returns the end of each bucket: the last whole unit inside, or the border."""
        ends: Any = self.first + self.width * np.arange(1.0, self.buckets + 1)
        return np.asarray(ends - 1 if self.whole else ends, np.float64)


class Bands(NamedTuple):
    """A thinned series: a number per bucket; NaN in a bucket without any finite figure."""

    mean: Column
    """Mean of the figures in each bucket."""
    low: Column
    """Lowest figure in each bucket."""
    high: Column
    """Highest figure in each bucket."""
    quantiles: tuple[Column, Column, Column]
    """The 10th, 50th and 90th percentile of the figures in each bucket."""
    finite: NDArray[np.int64]
    """Number of finite figures."""
    nonfinite: NDArray[np.int64]
    """Number of figures recorded as NaN or infinity."""


def banded(grid: Grid, at: Column, figures: Column, *, quantiles: bool = True) -> Bands:
    """Returns the bands of a series; positions outside of the grid are left out, and without `quantiles` they are NaN.

    `at` is ascending.
    """
    end = grid.first + grid.width * grid.buckets
    first = int(np.searchsorted(at, grid.first))
    last = int(np.searchsorted(at, end, side="left" if grid.whole else "right"))
    figures = figures[first:last]
    bucket = grid.bucket_of(at[first:last])
    finite = np.isfinite(figures)
    nonfinite = np.bincount(bucket[np.isnan(figures)], minlength=grid.buckets)
    if not finite.all():
        bucket, figures = bucket[finite], figures[finite]
    count = np.bincount(bucket, minlength=grid.buckets)
    filled = count > 0
    starts = (np.cumsum(count) - count)[filled]
    sizes = count[filled]
    empty = np.full(grid.buckets, np.nan)
    if not len(starts):
        return Bands(empty, empty, empty, (empty, empty, empty), count, nonfinite)
    ordered = figures
    if quantiles:
        # By figure, then stably by bucket: 16-bit numbers are sorted by their digits.
        by_figure = np.argsort(figures)
        ordered = figures[by_figure[np.argsort(bucket[by_figure], kind="stable")]]

    def at_share(share: float) -> Column:
        return _spread(filled, _quantile(ordered, starts, sizes, share)) if quantiles else empty

    return Bands(
        mean=_spread(filled, np.add.reduceat(figures, starts) / sizes),
        low=_spread(filled, np.minimum.reduceat(figures, starts)),
        high=_spread(filled, np.maximum.reduceat(figures, starts)),
        quantiles=(at_share(0.1), at_share(0.5), at_share(0.9)),
        finite=count,
        nonfinite=nonfinite,
    )


def _quantile(ordered: Column, starts: NDArray[np.int64], sizes: NDArray[np.int64], share: float) -> Column:
    """Returns a quantile of each sorted bucket, between two figures by linear interpolation."""
    position = share * (sizes - 1)
    below = position.astype(np.int64)
    above = np.minimum(below + 1, sizes - 1)
    low: Column = ordered[starts + below]
    high: Column = ordered[starts + above]
    # Interpolated as a weighted sum: the difference of two extreme figures may overflow.
    weight: Any = position - below
    return np.asarray(low * (1 - weight) + high * weight, np.float64)


def _spread(filled: NDArray[np.bool_], figures: Column) -> Column:
    """Returns the figures of the filled buckets at the positions of these buckets; NaN in empty buckets."""
    whole = np.full(len(filled), np.nan)
    whole[filled] = figures
    return whole


def rounded(figures: Column, *, digits: int = DIGITS) -> list[float | None]:
    """Returns figures with so many significant digits; NaN and infinity as None."""
    finite = np.isfinite(figures)
    safe = np.where(finite & (figures != 0), figures, 1.0)
    decimals = digits - 1 - np.floor(np.log10(np.abs(safe))).astype(np.int64)
    # Powers of ten up to 10^22 are exact, so that the quotient is the nearest number to the short decimal one.
    up, down = 10.0 ** np.clip(decimals, 0, 300), 10.0 ** np.clip(-decimals, 0, 300)
    short = np.where(decimals >= 0, np.round(safe * up) / up, np.round(safe / down) * down)
    short = np.where(figures == 0, 0.0, short)
    return [figure if is_finite else None for figure, is_finite in zip(short.tolist(), finite.tolist(), strict=True)]
