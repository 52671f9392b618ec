"""The row of each place in a stage: a pure function, so the dataset position is a fold of the sequence number.

The row is written into the lease or the plan that uses it: a later numpy with another generator changes the future
of a resumed experiment at most, never its past.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rftd.ops.errors import ConfigError

SELECTORS: Final = ("sequential", "shuffle")


def locate(sequence: int, *, rows: int, selector: str, seed: int) -> tuple[int, int]:
    """(row, epoch) of place `sequence`, from 0; each epoch holds every row once. Raises ConfigError for the selector.

    `sequential` repeats the order of the files; `shuffle` draws a permutation per epoch from seed + epoch.
    """
    assert sequence >= 0 and rows > 0, (sequence, rows)
    if selector not in SELECTORS:
        raise ConfigError(
            f"unknown data selector {selector!r}; known: {', '.join(SELECTORS)}",
            field="data_selector.selector_type",
            fix="use one of the known selectors",
        )
    epoch, place = divmod(sequence, rows)
    if selector == "sequential":
        return place, epoch
    return int(permutation(rows, seed + epoch)[place]), epoch


@lru_cache(maxsize=2)
def permutation(rows: int, seed: int) -> NDArray[np.int64]:
    """The order of an epoch  # [rows] i8, read-only. Two are kept: places near the end of an epoch alternate."""
    # Numpy refuses negative seeds; a specification may hold one.
    order = np.random.default_rng(seed % 2**64).permutation(rows)
    order.flags.writeable = False  # shared by all who ask: one that sorted it would move everybody's rows
    return order
