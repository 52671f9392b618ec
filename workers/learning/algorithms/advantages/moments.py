"""Mean and standard deviation of a group's rewards, as used by group-relative advantages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Exact: TypeAlias = "NDArray[np.float64]"
"""Array of float64 numbers, for sums."""


def moments(values: Exact) -> tuple[float, float]:
    """Returns the mean and the unbiased std; 0 and 1 for a single value, so that its advantage is the value itself."""
    return mean_and_std(values) if len(values) > 1 else (0.0, 1.0)


def mean_and_std(values: Exact) -> tuple[float, float]:
    """Returns the mean and the unbiased std (0 for a single value), with the bits of numpy's `mean` and `std` but
    faster.
    """
    import numpy as np

    # Not values.mean() and values.std(): asked for every closed group, they spend most of their time on checks. The
    # bits are equal, which replays rely on.
    mean = float(np.add.reduce(values)) / len(values)
    if len(values) < 2:
        return mean, 0.0
    gaps = values - mean
    return mean, math.sqrt(float(np.add.reduce(gaps * gaps)) / (len(values) - 1))


def std_of_all(groups: list[Exact]) -> float:
    """Returns the unbiased std over the values of all groups together; 1 for fewer than two values."""
    import numpy as np

    values = np.concatenate(groups) if groups else np.zeros(0)
    return float(values.std(ddof=1)) if len(values) > 1 else 1.0


def spread_out(values: Exact, threshold: float | None) -> bool:
    """True if the unbiased std is above the threshold, or without a threshold; False for a single value with a
    threshold.
    """
    return threshold is None or (len(values) > 1 and moments(values)[1] > threshold)
