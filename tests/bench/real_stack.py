"""The demo with all real: vLLM, verl on two ranks, a Ray cluster, Kafka and Postgres; beside it the embedded demo.

The embedded one runs on the torch engines, with the same model. Every run must complete and pass the demo's own bar, a
seed's held-out accuracy must be within 0.05 of the embedded demo's, `rftd verify` must find nothing, and no actor, no
placement group, no process and no shared memory of a run may be left. A run that is in the record is not run again. In
the environment of the CPU engines:

    build/engines-cpu/bin/python -P tests/bench/real_stack.py --record out/real_stack.jsonl [--seeds 1 2 3]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import note, read_options, tell
from left_behind import Watch
from synthetic.daemon.ray_cluster import RayNodes, ray_nodes

from rftd.daemon.demo.demo import HEAD_SIZES
from rftd.daemon.demo.outcome import DemoOutcome
from rftd.daemon.stack.pair import Stack
from rftd.workers.models.tiny_model import make_tiny_model

LONGEST_S: Final = 7200.0
WITHIN: Final = 0.05
LEFT_S: Final = 10.0
"""The longest that what a run started may stay after it."""
REAL: Final = ("trainer.trainer_type=verl", "trainer.engine_args={device: cpu, ranks: 2}")
RFTD: Final = (sys.executable, "-P", "-m", "rftd.daemon")


def watched(stack: str, seed: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """One demo, on a cluster of its own where it needs one; its figures, and what it left behind."""
    shutil.rmtree(folder, ignore_errors=True)  # of a run that did not come to its end
    folder.mkdir(parents=True)
    # The cluster is made within: its actors have the environment of the node that starts them.
    with Watch(folder) as watch, ray_nodes() if stack == "real" else nullcontext() as nodes:
        figures = run(stack, seed, folder, overrides, nodes)
        left = watch.left(LEFT_S)
    segments = sorted(each.name for each in watch.segments)
    return {**figures, "processes": len(watch.processes), "segments": segments, "left_behind": left}


def run(stack: str, seed: int, folder: Path, overrides: list[str], nodes: RayNodes | None) -> dict[str, Any]:
    """One demo; its figures. What it printed lies in demo.txt beside its folder."""
    demo = folder / "demo"
    # The embedded demo's own model has heads that vLLM does not take on a CPU: both learn on the one made for vLLM.
    model = make_tiny_model(folder / "model", seed=seed, head_size=HEAD_SIZES["vllm"])
    settings = [f"model.model_path={model}", *overrides]
    command = [*RFTD, "demo", "--seed", str(seed), "--folder", str(demo)]
    environ = dict(os.environ)
    if nodes is not None:
        command += ["--stack", "kafka", "--engine", "vllm"]
        settings += REAL
        environ |= {"RFTD_WORKERS": "ray", "RFTD_RAY_ADDRESS": nodes.address}
    for each in settings:
        command += ["-s", each]
    load_before = os.getloadavg()[0]
    began_s = time.monotonic()
    with (folder / "demo.txt").open("w") as output:
        status = subprocess.run(command, stdout=output, stderr=output, env=environ, timeout=LONGEST_S).returncode
    wall_s = time.monotonic() - began_s
    if not (demo / "outcome.json").exists():
        raise SystemExit(f"the demo ended with status {status}: {(folder / 'demo.txt').read_text()[-1000:]}")
    outcome = msgspec.json.decode((demo / "outcome.json").read_bytes(), type=DemoOutcome)
    with _served(demo) if nodes is not None else nullcontext([]) as where:
        verified = subprocess.run(
            [*RFTD, "verify", "--data", str(demo / "data"), *where], capture_output=True, text=True, timeout=LONGEST_S
        )
    return {
        "stack": stack,
        "seed": seed,
        "overrides": overrides,
        "exit_status": status,
        "state": outcome.state,
        "after_sft": round(outcome.after_sft, 3),
        "after_grpo": round(outcome.after_grpo, 3),
        "last_256_reward": round(outcome.last_rewards_mean, 3),
        "steps": outcome.steps,
        "grpo_steps": outcome.grpo_steps,
        "generations": outcome.generations,
        "staleness_max_versions": outcome.staleness_max_versions,
        "wall_s": round(wall_s, 1),
        "grpo_s": round(outcome.grpo_s, 1),
        "verify_exit_status": verified.returncode,
        "verify": verified.stdout.strip().splitlines()[-1:] or verified.stderr[-300:],
        "left_on_cluster": nodes.left() if nodes is not None else [],
        "load": [round(each, 1) for each in (load_before, os.getloadavg()[0])],
    }


@contextmanager
def _served(demo: Path) -> Iterator[list[str]]:
    """The demo's servers, which ended with it, started once more; the options that name them."""
    stack = Stack(demo / "data" / "stack")
    stack.up()
    try:
        yield ["--kafka", stack.parts()[0].url]
    finally:
        stack.down()


def main() -> None:
    options = read_options(
        __doc__,
        seeds=[1, 2, 3],
        stacks=["real", "embedded"],
        record={"type": Path, "required": True},
        folder=(Path, "where the runs' files stay; a folder that is deleted unless given"),
        overrides={"flag": "-s", "action": "append", "default": [], "help": "a field of both, as of rftd demo"},
    )
    options.record.parent.mkdir(parents=True, exist_ok=True)
    runs = [json.loads(each) for each in options.record.read_text().splitlines()] if options.record.exists() else []
    for seed in options.seeds:
        for stack in options.stacks:
            if any(
                (each["stack"], each["seed"], each["overrides"]) == (stack, seed, options.overrides) for each in runs
            ):
                continue
            with tempfile.TemporaryDirectory() as name:
                runs.append(watched(stack, seed, (options.folder or Path(name)) / f"{stack}-{seed}", options.overrides))
            with options.record.open("a") as record:
                record.write(json.dumps(runs[-1]) + "\n")
            note(runs[-1])
    ours = {each["seed"]: each for each in runs if each["stack"] == "real"}
    beside = {each["seed"]: each for each in runs if each["stack"] == "embedded"}
    apart = {seed: round(beside[seed]["after_grpo"] - ours[seed]["after_grpo"], 3) for seed in ours if seed in beside}
    tell({"runs": runs, "held_out_below_embedded": apart})
    for each in runs:
        assert each["exit_status"] == 0 and each["state"] == "completed" and each["verify_exit_status"] == 0, each
        # A run of which nothing was seen would leave nothing, whatever it did.
        assert each["processes"] and not each["left_on_cluster"] and not each["left_behind"], each
    assert all(below <= WITHIN for below in apart.values()), apart


if __name__ == "__main__":
    main()
