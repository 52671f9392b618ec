"""The demo in files and on a real Kafka and Postgres, in turn, with the same seeds: seconds after the servers' start.

Run: python -P tests/bench/demo_stacks.py [--seeds 1 2 3]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_ratio, note, read_options, tell

from rftd.daemon.demo.outcome import DemoOutcome


def run(stack: str, seed: int, folder: Path) -> dict[str, float | str]:
    """One demo; its figures."""
    command = [sys.executable, "-P", "-m", "rftd.daemon", "demo", "--stack", stack, "--seed", str(seed)]
    done = subprocess.run([*command, "--folder", str(folder)], capture_output=True, text=True, timeout=900)
    outcome = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=DemoOutcome)
    found = re.search(r"([\d.]+) s in all", done.stdout)
    assert found is not None, done.stdout[-500:]
    return {
        "stack": stack,
        "seed": seed,
        "exit_status": done.returncode,
        "wall_s": float(found[1]),
        "grpo_s": round(outcome.grpo_s, 1),
        "rise": round(outcome.after_grpo - outcome.after_sft, 3),
        "last_256_reward": round(outcome.last_rewards_mean, 3),
        "staleness_mean_versions": round(outcome.staleness_mean_versions, 2),
    }


def main() -> None:
    options = read_options(__doc__, seeds=[1, 2, 3])
    runs = []
    for seed in options.seeds:
        for stack in ("embedded", "kafka"):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(run(stack, seed, Path(folder) / "demo"))
                note(runs[-1])
    wall_s = [float(figures["wall_s"]) for figures in runs]
    tell({"runs": runs, "median_ratio": median_ratio(wall_s[1::2], wall_s[::2])})


if __name__ == "__main__":
    main()
