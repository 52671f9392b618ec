"""Some faults of a service; `make torture-tinker` strikes ten thousand times."""

from __future__ import annotations

from pathlib import Path

import pytest
from property.torture_tinker import FAULTS, struck


@pytest.mark.slow
def test_whatever_strikes_the_books_balance(tmp_path: Path) -> None:
    counts = struck(150, tmp_path)
    assert len(counts) == len(FAULTS)
