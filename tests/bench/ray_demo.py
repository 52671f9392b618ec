"""The demo with workers as actors of a Ray cluster and as processes, in turn: seconds from first to last GRPO step.

Both on the torch engines and the embedded log; the cluster is of this machine. What starting takes is not in it. A demo
that does not learn as it must ends the measurement, unless its fields were changed.
Run in an environment with ray: python -P tests/bench/ray_demo.py [--seeds 1 2 3] [-s FIELD=VALUE ...]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import note, read_options, tell
from synthetic.daemon.ray_cluster import ray_nodes

from rftd.daemon.demo.outcome import DemoOutcome


def run(
    workers: str, seed: int, folder: Path, overrides: Sequence[str], environ: Mapping[str, str]
) -> dict[str, float | str]:
    """One demo; its figures."""
    command = [sys.executable, "-P", "-m", "rftd.daemon", "demo", "--seed", str(seed), "--folder", str(folder)]
    for each in overrides:
        command += ["-s", each]
    load_before = os.getloadavg()[0]
    status = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "RFTD_WORKERS": workers, **environ},
        timeout=3600,
    ).returncode
    outcome = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=DemoOutcome)
    return {
        "workers": workers,
        "seed": seed,
        "exit_status": status,
        "state": outcome.state,
        "grpo_steps": outcome.grpo_steps,
        "grpo_s": round(outcome.grpo_s, 1),
        "after_grpo": round(outcome.after_grpo, 3),
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    options = read_options(
        __doc__,
        seeds=[1, 2, 3],
        overrides={"flag": "-s", "action": "append", "default": [], "help": "a field of both, as of rftd demo"},
    )
    runs = []
    with ray_nodes() as nodes:
        for number, seed in enumerate(options.seeds):
            turn = ("local", "ray") if number % 2 == 0 else ("ray", "local")
            for workers in turn:
                environ = {"RFTD_RAY_ADDRESS": nodes.address} if workers == "ray" else {}
                with tempfile.TemporaryDirectory() as folder:
                    runs.append(run(workers, seed, Path(folder) / "demo", options.overrides, environ))
                note(runs[-1])
                assert runs[-1]["state"] == "completed" and (options.overrides or runs[-1]["exit_status"] == 0), runs[
                    -1
                ]
    seconds = {(each["workers"], each["seed"]): float(each["grpo_s"]) for each in runs}
    ratios = [round(seconds["ray", seed] / seconds["local", seed], 2) for seed in options.seeds]
    tell({"runs": runs, "ratios": ratios, "median_ratio": statistics.median(ratios)})


if __name__ == "__main__":
    main()
