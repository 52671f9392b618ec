"""The row of each place in a stage: a pure function, so the dataset position is a fold of the sequence number.

The row is written into the lease or the plan that uses it: a later numpy with another generator changes the future
of a resumed experiment at most, never its past.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from rftd.ops.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


class RowOrder(NamedTuple):
    """The order of one dataset, as `locate` takes it."""

    rows: int
    selector: str
    seed: int


def locate_among(sequence: int, orders: tuple[RowOrder, ...]) -> tuple[int, int]:
    """(row, epoch) of place `sequence` among several datasets, whose rows are counted on from one to the next.

    Each epoch holds every row of each once. The turns of the datasets are drawn anew for each epoch, in proportion to
    their rows, and each keeps its own order: Trinity-RFT's rule, with its draws. Raises ConfigError for a selector.
    """
    if len(orders) == 1:
        return locate(sequence, rows=orders[0].rows, selector=orders[0].selector, seed=orders[0].seed)
    epoch, place = divmod(sequence, sum(each.rows for each in orders))
    return int(_mixed(orders, epoch)[place]), epoch


@lru_cache(maxsize=2)
def _mixed(orders: tuple[RowOrder, ...], epoch: int) -> NDArray[np.int64]:
    """The rows of an epoch over all datasets, in order  # [rows] i8, read-only."""
    import numpy as np

    turns = np.repeat(np.arange(len(orders)), [each.rows for each in orders])
    np.random.default_rng(epoch).shuffle(turns)
    mixed = np.empty(len(turns), np.int64)
    first = 0
    for number, (rows, selector, seed) in enumerate(orders):
        locate(0, rows=rows, selector=selector, seed=seed)  # refuses an unknown selector
        own = np.arange(rows) if selector == "sequential" else permutation(rows, seed + epoch)
        mixed[turns == number] = first + own
        first += rows
    mixed.flags.writeable = False
    return mixed


@lru_cache(maxsize=2)
def permutation(rows: int, seed: int) -> NDArray[np.int64]:
    """The order of an epoch  # [rows] i8, read-only. Two are kept: places near the end of an epoch alternate."""
    import numpy as np

    # Numpy refuses negative seeds; a specification may hold one.
    order = np.random.default_rng(seed % 2**64).permutation(rows)
    order.flags.writeable = False  # shared by all who ask: one that sorted it would move everybody's rows
    return order
