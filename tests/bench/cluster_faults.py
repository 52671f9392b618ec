"""A run on Kafka and Postgres while they die and the network fails: so many faults of each kind, at random moments.

Each run must complete, `verify` must find nothing, and the tables rebuilt from the log must equal the live ones.
`repeated_records` were written twice, as a lost answer makes it happen, and had no effect.
Run: python -P tests/bench/cluster_faults.py [--faults 20] [--kinds broker database network] [--seed 1]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import note, read_options, tell
from synthetic.daemon.scene import EXPERIMENT
from synthetic.servers.cluster_scene import Cluster, Fault, fail_network, kill_broker, kill_database

KINDS: Final[dict[str, tuple[Fault, float]]] = {
    # Steps for each fault: without a broker none is made, and for want of a database none waits.
    "broker": (kill_broker, 12.0),
    "database": (kill_database, 22.0),
    "network": (fail_network, 20.0),
}
TIMEOUT_S: Final = 1200.0


def faulty_run(kind: str, faults: int, seed: int, cluster: Cluster, folder: Path) -> dict[str, object]:
    """One run of at least 0.2 s a step, during which a kind of fault happens so many times."""
    chance = random.Random(seed)
    fault, steps_per_fault = KINDS[kind]
    steps = round(faults * steps_per_fault) + 20
    folder.mkdir()
    scene = cluster.scene(folder)
    began_s = time.monotonic()
    with scene.host:
        name = scene.submit(
            EXPERIMENT,
            f"buffer.total_steps={steps}",
            "trainer.engine_args.step_s=0.2",
            "explorer.eval_interval=100",
            "trainer.save_interval=25",
        )
        page, done = scene.through(name, faults, fault, chance, TIMEOUT_S)
        ran_s = time.monotonic() - began_s
        figures = scene.examined(page)
    kinds = Counter(" ".join(each.split()[:3]) if kind == "network" else each for each in done)
    needed = {"faults": len(done), "which": kinds, "wall_s": round(ran_s, 1), "steps_needed": steps + 5}
    log = (folder / "daemon.log").read_text()
    return {"kind": kind, "seed": seed, **needed, **figures, "daemon_log_lines": log.count("\n")}


def main() -> None:
    options = read_options(
        __doc__, faults=20, kinds={"nargs": "+", "choices": list(KINDS), "default": list(KINDS)}, seed=1
    )
    with tempfile.TemporaryDirectory(prefix="rftd-faults-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # a server of root's runs as another user
        with Cluster(folder / "servers") as cluster:
            runs = []
            for kind in options.kinds:
                runs.append(faulty_run(kind, options.faults, options.seed, cluster, folder / kind))
                note(runs[-1])
    tell({"runs": runs})
    bad = [run for run in runs if run["state"] != "completed" or run["findings"] or not run["digests_equal"]]
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
