"""The trainer's time between two steps, in shares: trained, awaiting a batch, and prepared."""

from __future__ import annotations

from typing import Final

import numpy as np

from rftd.storage.queries.step_columns import ABSENT, PLANNED, StepTable
from rftd.storage.queries.thinning import Column

TIME: Final = "time/"
"""Prefix of the shares of the trainer's time."""
TIMES: Final = (f"{TIME}trained", f"{TIME}awaited", f"{TIME}prepared")
"""Shares of the time between the ends of two steps: training, waiting for the plan of the batch, and all else."""
TIME_COLUMNS: Final = ("duration_s", PLANNED)
"""Columns of steps behind the shares."""


def trainer_time(table: StepTable) -> dict[str, Column]:
    """Returns the shares of each step, `ABSENT` for the first step and for a step ending before the step before."""
    interval_s = np.diff(table.completed_ns, prepend=table.completed_ns[:1]) / 1e9
    trained_s = np.clip(np.nan_to_num(table.figures["duration_s"], posinf=0.0), 0.0, np.maximum(interval_s, 0.0))
    planned_ns = table.figures[PLANNED]
    ended_before_ns = table.completed_ns - interval_s * 1e9
    # Supervised steps have no plan: nothing was awaited.
    until_plan_s = np.where(np.isfinite(planned_ns), (planned_ns - ended_before_ns) / 1e9, 0.0)
    awaited_s = np.clip(until_plan_s, 0.0, np.maximum(interval_s - trained_s, 0.0))
    spans = (trained_s, awaited_s, interval_s - trained_s - awaited_s)
    counts = interval_s > 0
    return {
        name: np.divide(span_s, interval_s, out=np.full(len(interval_s), ABSENT), where=counts)
        for name, span_s in zip(TIMES, spans, strict=True)
    }
