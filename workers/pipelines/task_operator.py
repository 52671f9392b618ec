"""`TaskOperator`: one step of the task pipeline, and `PipelineRow`, the form of input rows for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec


class PipelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a task pipeline. Operators return changed copies (`msgspec.structs.replace`), or leave rows out."""

    input: int
    """Number of the input, from 0; with `row` the row's identity, never to be changed."""
    row: int
    """Number of the row in the input, from 0."""
    columns: Mapping[str, Any]
    """The row's columns, as written into the result."""
    text: str
    """Text of the row under the pipeline's `text_key`, judged by operators; a cell of another type as JSON."""
    stats: Mapping[str, float] = {}
    """Figures of earlier operators, by name; scores of the priority are computed from them."""


class TaskOperator(Protocol):
    """One step of the task pipeline: removes, changes or scores rows.

    A class with the attribute `separate_rows = True` promises equal answers for any division of the rows: parts are
    processed at the same time.
    """

    def process(self, rows: Sequence[PipelineRow]) -> tuple[Sequence[PipelineRow], Mapping[str, float]]:
        """Returns the remaining rows, in order, and figures by name. An exception fails the submission."""
        ...
