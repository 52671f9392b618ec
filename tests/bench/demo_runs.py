"""The demo as a newcomer runs it: `rftd demo` with three seeds, each with its own model, split and sampling.

Run: python -P tests/bench/demo_runs.py [--seeds 1 2 3]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from figures import read_options, tell

from rftd.daemon.demo.outcome import DemoOutcome


def run(seed: int, folder: Path) -> dict[str, float]:
    """One demo; its figures."""
    began_s = time.monotonic()
    command = [sys.executable, "-P", "-m", "rftd.daemon", "demo", "--seed", str(seed), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    wall_s = time.monotonic() - began_s
    outcome = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=DemoOutcome)
    return {
        "seed": seed,
        "exit_status": done.returncode,
        "wall_s": round(wall_s, 1),
        "after_sft": round(outcome.after_sft, 3),
        "after_grpo": round(outcome.after_grpo, 3),
        "rise": round(outcome.after_grpo - outcome.after_sft, 3),
        "last_256_reward": round(outcome.last_rewards_mean, 3),
        "staleness_mean_versions": round(outcome.staleness_mean_versions, 2),
        "staleness_max_versions": outcome.staleness_max_versions,
        "grpo_s": round(outcome.grpo_s, 1),
    }


def main() -> None:
    seeds = read_options(__doc__, seeds=[1, 2, 3]).seeds
    with tempfile.TemporaryDirectory() as folder:
        runs = [run(seed, Path(folder) / f"seed{seed}") for seed in seeds]
    figures = {
        "runs": runs,
        "median_wall_s": statistics.median(each["wall_s"] for each in runs),
        "least_rise": min(each["rise"] for each in runs),
        "least_last_256_reward": min(each["last_256_reward"] for each in runs),
    }
    tell(figures)


if __name__ == "__main__":
    main()
