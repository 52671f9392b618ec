"""Files that were cut off or hold a flipped bit: read as before, or refused with a place; never less in silence."""

from __future__ import annotations

import random

import pytest


@pytest.mark.slow
def test_damaged_files_are_read_as_before_or_refused_with_a_place(chance: random.Random) -> None:
    from synthetic.faults.damage import TARGETS, damaged

    counts = damaged(TARGETS, chance, cuts=25, flips=25)
    assert counts.broken == []
    assert counts.cases == {target.name: 50 for target in TARGETS}
    assert all(counts.refused.get(target.name, 0) > 20 for target in TARGETS if target.name != "heads")
