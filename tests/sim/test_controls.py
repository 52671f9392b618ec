"""Positive controls: each planted bug is found by the oracle that is there for it, within a bounded number of seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from simulator.bugs import BUGS  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("name", [bug.name for bug in BUGS])
def test_a_planted_bug_is_found(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / "run.py"), "--bug", name], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
