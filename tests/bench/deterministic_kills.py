"""`deterministic: true` on the torch engines: a run untouched, and one killed at random, must make equal weights.

Daemon, explorers and trainer are killed (SIGKILL). The sha256 of the weights after every step is compared.
Run: python -P tests/bench/deterministic_kills.py [--kills 20] [--steps 40] [--seed 1]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import read_options, tell
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.torch_world import TORCH, torch_files
from synthetic.deaths.killing import IN_ORDER, Killing, trained


def run(folder: Path, kills: int, steps: int, chance: random.Random) -> tuple[dict[str, object], object]:
    """One run to its end; what happened to it, and the weights of each step."""
    folder.mkdir()
    scene = Scene(folder)
    torch_files(folder)
    began_s = time.monotonic()
    with scene.host:
        killing = Killing(scene, chance, together_p=0.0)
        name = scene.submit(EXPERIMENT, *TORCH, *IN_ORDER, f"buffer.total_steps={steps}")
        page = killing.until_ended(name, kills)
        report = scene.verified()
        weights = trained(scene)
    said = {
        "kills": dict(killing.killed),
        "state": page.experiment.summary.state,
        "wall_s": round(time.monotonic() - began_s, 1),
        "findings": len(report.findings),
        "steps": report.experiments[0].steps,
        "executions": report.experiments[0].executions,
        "generations": report.experiments[0].generations,
    }
    return said, weights


def main() -> None:
    """Prints both runs and whether their weights are equal; exits 1 if they are not."""
    options = read_options(__doc__, kills=20, steps=40, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        chance = random.Random(options.seed)
        both = [run(Path(folder) / str(kills), kills, options.steps, chance) for kills in (0, options.kills)]
    equal = both[0][1] == both[1][1]
    tell({"untouched": both[0][0], "killed": both[1][0], "weights_equal": equal})
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
