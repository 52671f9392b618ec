"""Positive controls: each planted bug is found by the oracle that is there for it, within a bounded number of seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from synthetic.log.checker_rules import OF_AN_EXPERIMENT

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from simulator.bugs import BUGS  # noqa: E402
from simulator.oracles import ORACLES  # noqa: E402

OF_THE_WHOLE_LOG = ("gapless", "chain", "heads-remembered", "readable", "unique", "submitted")
"""Rules of verify that are not about one experiment."""


pytestmark = pytest.mark.timeout(1500)  # the first test waits for the hunt of every bug


@pytest.fixture(scope="module")
def hunted() -> dict[str, str]:
    """What became of each planted bug, by its name: one run on two processes."""
    arguments = [sys.executable, "-P", str(HERE / "run.py"), "--bug", "all", "--jobs", "2"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=1200)
    assert done.stdout, done.stderr[-3000:]
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", [bug.name for bug in BUGS])
def test_a_planted_bug_is_found(name: str, hunted: dict[str, str]) -> None:
    assert hunted[name].startswith("found by"), f"{hunted[name]}; see tests/sim/run.py --bug {name!r}"


def test_every_promise_has_a_planted_bug() -> None:
    rules = [f"verify: {rule}" for rule in (*OF_THE_WHOLE_LOG, *OF_AN_EXPERIMENT)]
    oracles = [oracle.__name__ for oracle in ORACLES]
    promises = [*rules, *oracles, "liveness", "lost in vain", "recomputed"]
    found_by = {bug.found_by for bug in BUGS}
    assert [promise for promise in promises if promise not in found_by] == []
