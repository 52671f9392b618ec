"""The rows of a batch: in the order of their dataset, epoch after epoch, a function of the step alone."""

from __future__ import annotations

from rftd.streams.events.batch import RowItem
from rftd.streams.row_order import locate
from rftd.streams.spec import StageSpec


def rows_of_step(
    stage: StageSpec, stage_step: int, *, shared_steps: int = 0, shared_rows: int = 0
) -> tuple[RowItem, ...]:
    """The rows of the stage's step (from 1), all of its items or an expert's part: the position follows from the steps.

    Of a fork's stage the first `shared_steps` were another experiment's, and took `shared_rows` rows.
    """
    dataset = stage.dataset
    assert dataset is not None and dataset.rows > 0, stage.name
    size = stage.expert_rows or stage.train_batch_size
    first = shared_rows + (stage_step - 1 - shared_steps) * size
    places = (
        locate(sequence, rows=dataset.rows, selector=dataset.selector, seed=dataset.seed)
        for sequence in range(first, first + size)
    )
    return tuple(RowItem(0, row, epoch) for row, epoch in places)
