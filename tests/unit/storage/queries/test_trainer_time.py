"""The shares of the trainer's time: they sum up to 1, and follow the plan of the batch."""

from __future__ import annotations

import numpy as np
import pytest

from rftd.storage.queries.step_columns import ABSENT, PLANNED, StepTable
from rftd.storage.queries.trainer_time import trainer_time


def test_shares_of_a_step_follow_its_plan_and_sum_up_to_one() -> None:
    ended_s = np.array([10.0, 20.0, 30.0, 40.0, 39.0])
    planned_s = np.array([1.0, 14.0, ABSENT, 12.0, 38.0])
    figures = {"duration_s": np.array([5.0, 5.0, 2.0, 20.0, 1.0]), PLANNED: planned_s * 1e9}
    table = StepTable(np.arange(5), (ended_s * 1e9).astype(np.int64), figures, [], np.empty((2, 0), np.int64))
    shares = trainer_time(table)
    trained, awaited, prepared = (shares[f"time/{name}"].tolist() for name in ("trained", "awaited", "prepared"))
    assert trained == pytest.approx([ABSENT, 0.5, 0.2, 1.0, ABSENT])
    assert awaited == pytest.approx([ABSENT, 0.4, 0.0, 0.0, ABSENT])
    assert prepared == pytest.approx([ABSENT, 0.1, 0.8, 0.0, ABSENT])
