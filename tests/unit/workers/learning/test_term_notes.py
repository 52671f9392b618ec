"""Columns of tokens, noted micro-batch by micro-batch: the first pass over a sample counts."""

from __future__ import annotations

import numpy as np
import torch

from rftd.workers.learning.term_notes import TermNotes


def test_a_later_epoch_changes_nothing_and_untrained_samples_stay_empty() -> None:
    notes = TermNotes([3, 2, 4])
    members, sequence, places = np.array([2, 0]), np.array([0, 0, 1]), np.array([1, 3, 2])
    notes.note(members, sequence, places, {"ratio": torch.tensor([1.0, 2.0, 3.0])})
    notes.note(members, sequence, places, {"ratio": torch.tensor([7.0, 8.0, 9.0])})
    assert notes.columns[1] == {}
    np.testing.assert_array_equal(notes.columns[2]["ratio"], np.array([np.nan, 1, np.nan, 2], np.float32))
    np.testing.assert_array_equal(notes.columns[0]["ratio"], np.array([np.nan, np.nan, 3], np.float32))
