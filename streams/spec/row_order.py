"""The row of each place in a stage: a pure function, so the dataset position is a fold of the sequence number.

The row is written into the lease or the plan that uses it: a later numpy with another generator changes the future
of a resumed experiment at most, never its past.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rftd.ops.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SELECTORS: Final = ("sequential", "shuffle", "random")
"""The selectors whose rows follow from the place alone; what the others chose is in the log."""


_DRAWN_ROWS: Final = 2**20
"""The most rows whose shuffled order is drawn at once and kept, in 8 MiB; of more each place is computed by itself."""
_ROUNDS: Final = 4


def locate(sequence: int, *, rows: int, selector: str, seed: int, draw: int = 1) -> tuple[int, int]:
    """(row, epoch) of place `sequence`, from 0, in a dataset by itself. Raises ConfigError for the selector.

    `sequential` repeats the order of the files, and `shuffle` draws a permutation per epoch from seed + epoch: each
    epoch holds every row once. `random` draws `draw` different rows at a time, from seed + the first of their places:
    its epoch is the number of the draw, and each draw holds a row once at most.
    """
    assert sequence >= 0 and rows > 0, (sequence, rows)
    if selector not in SELECTORS:
        raise ConfigError(
            f"unknown data selector {selector!r}; known: {', '.join(SELECTORS)}",
            field="data_selector.selector_type",
            fix="use one of the known selectors",
        )
    if selector == "random":
        size = min(draw, rows)
        number, place = divmod(sequence, size)
        return int(_drawn(rows, seed + number * size, size)[place]), number
    epoch, place = divmod(sequence, rows)
    if selector == "sequential":
        return place, epoch
    if rows > _DRAWN_ROWS:
        return _row_at(place, rows, (seed + epoch) % 2**64), epoch
    return int(permutation(rows, seed, epoch)[place]), epoch


def _row_at(place: int, rows: int, key: int) -> int:
    """The row at a place of a permutation that is nowhere written out.

    A Feistel network permutes the numbers of an even count of bits; from one that is no row it goes on to the next.
    """
    half = ((rows - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    secret = key.to_bytes(8, "little")
    while True:
        high = place >> half
        low = place & mask
        for number in range(_ROUNDS):
            mixed = blake2b(low.to_bytes(8, "little"), key=secret, salt=bytes([number]), digest_size=8).digest()
            mixed_high = high ^ (int.from_bytes(mixed, "little") & mask)
            high = low
            low = mixed_high
        place = high << half | low
        if place < rows:
            return place


class RowOrder(NamedTuple):
    """The order of one dataset, as `locate` takes it."""

    rows: int
    selector: str
    seed: int
    draw: int = 1


class DatasetTurn(NamedTuple):
    """The dataset that has a place among several, as an index of them, and the place that this is within it."""

    dataset: int
    place: int


def turn_at(sequence: int, sizes: tuple[int, ...]) -> DatasetTurn:
    """The turn at place `sequence` among datasets of these sizes, in rows.

    Each epoch has a turn for every row of each. The turns are drawn anew for each epoch, in proportion to the sizes:
    Trinity-RFT's rule, with its draws.
    """
    if len(sizes) == 1:
        return DatasetTurn(0, sequence)
    epoch, place = divmod(sequence, sum(sizes))
    turns, numbers = _turns(sizes, epoch)
    dataset = int(turns[place])
    return DatasetTurn(dataset, epoch * sizes[dataset] + int(numbers[place]))


def locate_among(sequence: int, orders: tuple[RowOrder, ...]) -> tuple[int, int]:
    """(row, epoch) of place `sequence` among several datasets, whose rows are counted on from one to the next.

    Each keeps its own order over its turns. Raises ConfigError for a selector.
    """
    sizes = tuple(order.rows for order in orders)
    dataset, place = turn_at(sequence, sizes)
    rows, selector, seed, draw = orders[dataset]
    row, epoch = locate(place, rows=rows, selector=selector, seed=seed, draw=draw)
    return sum(sizes[:dataset]) + row, epoch


@lru_cache(maxsize=2)
def _turns(sizes: tuple[int, ...], epoch: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The datasets of an epoch's places, and for each place how many turns its dataset had before  # [rows] each.

    Five bytes a row where there are at most 256 datasets of 2^32 rows in all.
    """
    import numpy as np

    # A shuffle draws by the number of items alone: the order is the same whatever their type.
    turns = np.repeat(np.arange(len(sizes), dtype=np.min_scalar_type(len(sizes) - 1)), sizes)
    np.random.default_rng(epoch).shuffle(turns)
    numbers = np.empty(len(turns), np.uint32 if len(turns) <= 2**32 else np.int64)
    for dataset, rows in enumerate(sizes):
        numbers[turns == dataset] = np.arange(rows, dtype=numbers.dtype)
    return turns, numbers


def permutation(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of an epoch  # [rows] i8, read-only."""
    return _permutations(rows, seed)(epoch)


@lru_cache(maxsize=8)
def _permutations(rows: int, seed: int) -> Callable[[int], NDArray[np.int64]]:
    """The orders of one dataset by epoch. Two are kept of each: places near the end of an epoch alternate."""
    import numpy as np

    def permuted(epoch: int) -> NDArray[np.int64]:
        # Numpy refuses negative seeds; a specification may hold one.
        order = np.random.default_rng((seed + epoch) % 2**64).permutation(rows)
        order.flags.writeable = False  # shared by all who ask: one that sorted it would move everybody's rows
        return order

    return lru_cache(maxsize=2)(permuted)


@lru_cache(maxsize=32)
def _drawn(rows: int, seed: int, size: int) -> NDArray[np.int64]:
    """Different rows of one draw  # [size] i8, read-only."""
    import numpy as np

    drawn = np.random.default_rng(seed % 2**64).choice(rows, size, replace=False)
    drawn.flags.writeable = False
    return drawn
