"""verl stopped after a step and taken up by one rank or two: weights and moments are those of the run itself."""

from __future__ import annotations

from pathlib import Path

from synthetic.models.engine_parity import make_models
from synthetic.models.resumed_ranks import ResumeBench

STEPS = 2
"""`tests/bench/rank_resume.py` stops at each of ten."""


def test_any_number_of_ranks_goes_on_after_any_step(tmp_path: Path) -> None:
    bench = ResumeBench("verl", make_models(tmp_path), tmp_path)
    try:
        found = list(bench.apart(STEPS))
    finally:
        bench.close()
    assert len(found) == 4 * STEPS
    for each in found:
        most = 0.0 if each.before == each.after else 1e-6
        assert each.weights <= most, each
        assert each.moments <= most, each
