"""Worlds of every kind, worlds that once failed, and the simulation's own promise: a seed is a world."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WORLDS = 400
ZOMBIES = 100
SERVED = 40
PIPED = 60


pytestmark = pytest.mark.timeout(2500)  # hundreds of worlds take minutes, and a loaded machine makes them many


def run(*arguments: str, timeout_s: float, **environ: str) -> subprocess.CompletedProcess[str]:
    """The script, in a process of its own: a world leaves tasks in their middle, which no other test should meet."""
    return subprocess.run(
        [sys.executable, "-P", str(HERE / "run.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **environ},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "worlds"), [("swarm", WORLDS), ("zombies", ZOMBIES), ("served", SERVED), ("piped", PIPED)]
)
def test_no_world_breaks_a_promise(mode: str, worlds: int) -> None:
    done = run("--mode", mode, "--seeds", f"0:{worlds}", "--jobs", "2", timeout_s=12000)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    summary = json.loads(done.stdout)
    assert summary["worlds"] == worlds
    assert summary["violations"] == 0
    met = summary["hits"]
    kinds = ("stop",) if mode == "zombies" else ("kill", "stop", "cut")
    roles = ("daemon", "trainer") if mode == "zombies" else ("daemon", "trainer", "explorer")
    assert not [f"{kind} {role}" for kind in kinds for role in roles if not met.get(f"{kind} {role}")]


@pytest.mark.slow
def test_worlds_that_once_failed_keep_their_promises() -> None:
    done = run("--regressions", "--jobs", "2", timeout_s=1200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["swarm"])
def test_a_seed_is_a_world(mode: str) -> None:
    """The same trace of every turn in another process, with another order of hashes."""
    traces = [
        run("--mode", mode, "--seeds", "0:10", "--traces", timeout_s=600, PYTHONHASHSEED=hashseed).stdout
        for hashseed in ("0", "4711")
    ]
    assert traces[0] == traces[1]
    assert len({line.split()[1] for line in traces[0].splitlines()}) == 10
