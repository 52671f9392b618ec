"""Tasks of a stage: the rows of its tasksets, numbered through from one taskset to the next.

A task is therefore one number in any taskset, and the position among all of them is one number, a fold of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.spec import StageSpec, TasksetSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SELECTORS: Final = ("sequential", "shuffle", "random")
"""Selectors whose row follows from the position alone; draws of other selectors are recorded in the log."""


_DRAWN_ROWS: Final = 2**20
"""Maximum number of rows with a shuffled order kept in memory, 8 MiB; with more, each place is computed alone."""
_ROUNDS: Final = 4
"""Rounds of the Feistel network that permutes rows."""


def locate(sequence: int, *, rows: int, selector: str, seed: int, draw: int = 1) -> tuple[int, int]:
    """Returns (row, epoch) of position `sequence`, from 0, in a single dataset. Raises ConfigError for a selector not
    in `SELECTORS`.

    `sequential` repeats the order of the files, and `shuffle` draws a permutation per epoch from seed + epoch: each
    epoch holds every row once. `random` draws `draw` different rows at a time, from seed + the first of their
    positions: its epoch is the number of the draw, and each draw holds a row at most once.
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
        number, index = divmod(sequence, size)
        return int(_drawn(rows, seed + number * size, size)[index]), number
    epoch, index = divmod(sequence, rows)
    if selector == "sequential":
        return index, epoch
    if rows > _DRAWN_ROWS:
        return _row_at(index, rows, (seed + epoch) % 2**64), epoch
    return int(permutation(rows, seed, epoch)[index]), epoch


def _row_at(index: int, rows: int, key: int) -> int:
    """Computes the row at an index of a permutation never stored as a whole.

    A Feistel network permutes the numbers of an even count of bits; a number that is no row is permuted again.
    """
    half = ((rows - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    secret = key.to_bytes(8, "little")
    while True:
        high = index >> half
        low = index & mask
        for number in range(_ROUNDS):
            mixed = blake2b(low.to_bytes(8, "little"), key=secret, salt=bytes([number]), digest_size=8).digest()
            mixed_high = high ^ (int.from_bytes(mixed, "little") & mask)
            high = low
            low = mixed_high
        index = high << half | low
        if index < rows:
            return index


class DatasetTurn(NamedTuple):
    """The dataset used at one position among several, and the position within that dataset."""

    dataset: int
    """Index of the dataset."""
    place: int
    """Position within the dataset's own order, from 0."""


def turn_at(sequence: int, sizes: tuple[int, ...]) -> DatasetTurn:
    """Returns the dataset used at position `sequence` among datasets with these numbers of rows.

    Each epoch has a turn for every row of each. The turns are drawn anew for each epoch, in proportion to the sizes:
    Trinity-RFT's rule, with its draws.
    """
    if len(sizes) == 1:
        return DatasetTurn(0, sequence)
    epoch, index = divmod(sequence, sum(sizes))
    turns, numbers = _turns(sizes, epoch)
    dataset = int(turns[index])
    return DatasetTurn(dataset, epoch * sizes[dataset] + int(numbers[index]))


@lru_cache(maxsize=2)
def _turns(sizes: tuple[int, ...], epoch: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draws the datasets of an epoch's places, and counts each dataset's earlier turns for each place  # [rows] each.

    Five bytes a row with at most 256 datasets and 2^32 rows in all.
    """
    import numpy as np

    # A shuffle draws by the number of items alone: the order does not depend on their type.
    turns = np.repeat(np.arange(len(sizes), dtype=np.min_scalar_type(len(sizes) - 1)), sizes)
    np.random.default_rng(epoch).shuffle(turns)
    numbers = np.empty(len(turns), np.uint32 if len(turns) <= 2**32 else np.int64)
    for dataset, rows in enumerate(sizes):
        numbers[turns == dataset] = np.arange(rows, dtype=numbers.dtype)
    return turns, numbers


def permutation(rows: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Returns the row numbers of an epoch in shuffled order  # [rows] i8, read-only."""
    return _permutations(rows, seed)(epoch)


@lru_cache(maxsize=8)
def _permutations(rows: int, seed: int) -> Callable[[int], NDArray[np.int64]]:
    """Returns a function from an epoch to the shuffled rows of one dataset. Two orders are cached for each dataset:
    places near the end of an epoch alternate.
    """
    import numpy as np

    def permuted(epoch: int) -> NDArray[np.int64]:
        # Numpy refuses negative seeds; a specification may hold one.
        order = np.random.default_rng((seed + epoch) % 2**64).permutation(rows)
        order.flags.writeable = False  # shared by all callers: sorting it would move everybody's rows
        return order

    return lru_cache(maxsize=2)(permuted)


@lru_cache(maxsize=32)
def _drawn(rows: int, seed: int, size: int) -> NDArray[np.int64]:
    """Draws the different rows of one draw  # [size] i8, read-only."""
    import numpy as np

    drawn = np.random.default_rng(seed % 2**64).choice(rows, size, replace=False)
    drawn.flags.writeable = False
    return drawn


class TaskPlace(NamedTuple):
    """Taskset (index in `tasksets_of`) and row of a task."""

    taskset: int
    """Index of the taskset in `tasksets_of`."""
    row: int
    """Row of the taskset."""


def tasksets_of(stage: StageSpec) -> tuple[TasksetSpec, ...]:
    """Returns the tasksets a stage explores, in the order in which rows are numbered; empty for a stage without
    rollouts.
    """
    return () if stage.taskset is None else (stage.taskset, *stage.more_tasksets)


def row_ranges(stage: StageSpec) -> list[range]:
    """Returns the rows of each taskset of a stage; the last one has all further numbers, as in `task_place`."""
    tasksets = tasksets_of(stage)
    firsts = list(accumulate((taskset.rows for taskset in tasksets[:-1]), initial=0))[: len(tasksets)]
    return [range(first, end) for first, end in zip(firsts, [*firsts[1:], LAST_INDEX + 1], strict=False)]


def is_queue(stage: StageSpec) -> bool:
    """True if the stage's tasks are added while the experiment runs."""
    return stage.taskset is not None and stage.taskset.queue


def task_place(stage: StageSpec, row: int) -> TaskPlace:
    """Returns the taskset and the row there of the stage's task number `row`; beyond the last row, of the
    last taskset.
    """
    first_row = 0
    last_number = len(stage.more_tasksets)
    for number, taskset in enumerate(tasksets_of(stage)):
        if number == last_number or row < first_row + taskset.rows:
            return TaskPlace(number, row - first_row)
        first_row += taskset.rows
    return TaskPlace(0, row)


def turn_of(stage: StageSpec, sequence: int) -> DatasetTurn:
    """Returns the taskset used at position `sequence` of the stage. Raises ConfigError for a stage without tasks."""
    sizes = tuple(taskset.rows for taskset in tasksets_of(stage))
    if not sizes or min(sizes) <= 0:
        raise ConfigError(f"stage {stage.name!r} explores and has no tasks", field="taskset", fix="submit it again")
    return turn_at(sequence, sizes)


def located(stage: StageSpec, turn: DatasetTurn) -> tuple[int, int]:
    """Returns (row, epoch) of a turn. Raises ConfigError for a taskset whose selector draws rows."""
    tasksets = tasksets_of(stage)
    taskset = tasksets[turn.dataset]
    draw = draw_size(stage, taskset)
    row, epoch = locate(turn.place, rows=taskset.rows, selector=taskset.selector, seed=taskset.seed, draw=draw)
    return sum(earlier.rows for earlier in tasksets[: turn.dataset]) + row, epoch


def draw_size(stage: StageSpec, taskset: TasksetSpec) -> int:
    """Returns the number of rows per draw of a taskset: its share of an explore step."""
    rows = sum(explored_taskset.rows for explored_taskset in tasksets_of(stage))
    return max(1, min(taskset.rows, stage.batch_size * taskset.rows // rows, limits.DRAW_ROWS))
