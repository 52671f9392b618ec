"""A process that dies at any named point costs time and nothing else; and every point is passed by some run."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rftd.ops.faults import POINTS

KEEPING = ("archive.", "restore.", "removal.", "garbage.")
"""Passed by commands that no run needs: tests/crash/test_keeping.py dies at each."""
REST = """
import sys
from pathlib import Path
from rftd.storage.files.artifacts import ArtifactStore
from rftd.storage.files.checkpoints import commit_folder
ArtifactStore(Path(sys.argv[1])).put(b"bytes")
for _ in range(2):
    commit_folder(Path(sys.argv[1]) / "global_step_1", lambda folder: (folder / "file").touch())
"""


@pytest.mark.e2e
@pytest.mark.slow
def test_a_death_at_each_point_is_survived_and_each_point_is_passed(tmp_path: Path) -> None:
    from synthetic.deaths.armed import BY_REFERENCE, REPLACING, SERVING, armed_run, points

    serving = points(*SERVING, "fence.")
    daemon = [(name, 1) for name in serving]
    # The first weights come before any progress, and each death without progress makes the next start wait longer.
    later = dict.fromkeys(points("weights.", "checkpoint."), 2)
    # A checkpoint is removed once in the life of a trainer that dies so often.
    later["checkpoint.before_removal"] = 1
    kept = points(*KEEPING)
    workers = [(name, later.get(name, 1)) for name in points("", without=(*serving, *REPLACING, *BY_REFERENCE, *kept))]
    with ThreadPoolExecutor(2) as both:
        monitor = "monitor.monitor_type=jsonl"
        sizes = (monitor, "trainer.max_checkpoints_to_keep=2", "trainer.save_interval=2", "buffer.total_steps=16")
        runs = list(both.map(lambda part: armed_run(tmp_path / part[0], part[1], *sizes), _named(daemon, workers)))
    assert [run.broken for run in runs] == [[], []]
    assert [run.spared for run in runs] == [[], []]
    hits = tmp_path / "hits"
    environ = {**os.environ, "RFTD_FAULTS_HITS": str(hits)}
    assert subprocess.run([sys.executable, "-P", "-c", REST, str(tmp_path / "rest")], env=environ).returncode == 0
    passed = set(hits.read_text().split()).union(*(run.passed for run in runs))
    assert POINTS - passed - set(kept) == set()


def _named(*parts: list[tuple[str, int]]) -> list[tuple[str, list[tuple[str, int]]]]:
    return list(zip(("daemon", "workers"), parts, strict=True))
