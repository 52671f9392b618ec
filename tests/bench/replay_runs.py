"""Asynchronous runs on the torch engines at the demo's size, killed at random and then replayed from their logs.

Daemon, explorers and trainer are killed (SIGKILL). Every step must have the digests that were recorded of it. Replays
are timed alone, after the run; the recorded time is that of the same steps when they trained, beside the explorers.
Run: python -P tests/bench/replay_runs.py [--runs 2] [--steps 60] [--kills 8]
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.torch_world import TORCH
from synthetic.deaths.killing import Killing

from rftd.workers.models.tiny_model import make_tiny_model

SIZE = ("algorithm.repeat_times=8", "buffer.batch_size=8", "explorer.rollout_model={engine_type: torch, engine_num: 3}")
"""64 experiences a step, from three explorers."""


def run(folder: Path, seed: int, steps: int, kills: int) -> dict[str, object]:
    """One run to its end, and what its replay found."""
    folder.mkdir()
    scene = Scene(folder)
    make_tiny_model(folder / "model", seed=seed)
    with scene.host:
        began_s = time.monotonic()
        killing = Killing(scene, random.Random(seed), together_p=0.0)
        name = scene.submit(EXPERIMENT, *TORCH, *SIZE, f"buffer.total_steps={steps}")
        page = killing.until_ended(name, kills)
        wall_s = time.monotonic() - began_s
        report = scene.verified()
    began_s = time.monotonic()
    said = scene.rftd("replay", name, "--json")
    answer = json.loads(said.out)
    found = report.experiments[0]
    return {
        "kills": dict(killing.killed),
        "state": page.experiment.summary.state,
        "wall_s": round(wall_s, 1),
        "findings": len(report.findings),
        "generations": found.generations,
        "executions": found.executions,
        "steps": answer["steps"],
        "equal": answer["equal"],
        "sha256_compared": answer["sha256_compared"],
        "replay_s": answer["duration_s"],
        "recorded_s": answer["recorded_duration_s"],
        "replay_wall_s": round(time.monotonic() - began_s, 1),
        "ratio": round(answer["duration_s"] / answer["recorded_duration_s"], 2),
    }


def main() -> None:
    """Prints each run; exits 1 unless every digest of every step was found again."""
    options = read_options(__doc__, runs=2, steps=60, kills=8, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for seed in range(options.seed, options.seed + options.runs):
            runs.append(run(Path(folder) / str(seed), seed, options.steps, options.kills))
            tell(runs[-1])
    sys.exit(0 if all(each["equal"] == each["steps"] and not each["findings"] for each in runs) else 1)


if __name__ == "__main__":
    main()
