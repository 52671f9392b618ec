"""What a row of a dataset gives the trainer: one sequence, or the two of a preference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rftd.streams.spec import TasksetSpec
from rftd.workers.chat.tokenizer import Tokenizer
from rftd.workers.tasksets.cpt_row import cpt_rows
from rftd.workers.tasksets.dpo_rows import dpo_rows
from rftd.workers.tasksets.record import Record
from rftd.workers.tasksets.sft_row import sft_rows
from rftd.workers.tasksets.train_row import TrainRow

SCHEMAS: Final[dict[str, Callable[[Record, Tokenizer, int], tuple[TrainRow, ...]]]] = {
    "sft": sft_rows,
    "dpo": dpo_rows,
    "cpt": cpt_rows,
}
"""What a dataset's rows are."""


def make_train_rows(
    record: dict[str, Any], *, spec: TasksetSpec, row: int, tokenizer: Tokenizer, max_model_len: int
) -> tuple[TrainRow, ...]:
    """The sequences of a record, each of at most `max_model_len` tokens: one, or of `dpo` chosen and rejected.

    Raises DataError, with the row and its keys, if a key is missing or what is there cannot be learned from.
    """
    return SCHEMAS[spec.schema](Record(record, spec, row), tokenizer, max_model_len)
