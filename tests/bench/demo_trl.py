"""The demo's GRPO stage against TRL's GRPOTrainer, or against our own synchronous mode, on paired seeds; JSON.

make bench-trl, or
python -P tests/bench/demo_trl.py --trl PYTHON [--seeds 1 2 3 4 5] [--target 0.9]
python -P tests/bench/demo_trl.py --against sync

For each seed the demo's SFT stage runs once, and everybody goes on from its checkpoint: the same tokenizer, sums,
reward function, batches of 32 sums with 8 answers each, learning rate, schedule, optimizer, clipping, temperature and
length, no KL and no evaluation. Ours sends weights through memory (`sync_method: memory`), as one would on one machine;
the rest of it is examples/demo.yaml. Measured is the time from the first rollout request until the 256 rollouts of a
training batch have a mean reward of the target; starting up is left out on every side. The sides run one after the
other on the same two cores, who begins alternates with the seeds. Settings of TRL: trl/grpo.py. Ours is the real daemon
with its real log and processes, the demo's checkpoints included.

TRL runs with as many threads as are faster in a short trial with the first seed, one or two: for a model this small it
is often one. The synchronous mode is ours with sync_style fixed and sync_offset 0: the explorer generates a batch with
the newest weights, then the trainer trains on it. Neither works while the other does, so each may have both cores: it
runs with one thread and with two for each, and the better time counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from demo_stage import make_checkpoint, train
from figures import median_of, note, read_options, tell

BARS = {"trl": 0.35, "sync": 0.7}
TRL_TIMEOUT_S = 550
STEPS = 300
"""Of the demo."""
TRIAL_STEPS = 15
CORES = 2
SETTINGS = {"synchronizer.sync_method": "memory"}
"""Of ours, in both modes."""


def ours(folder: Path, model: Path, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The asynchronous run."""
    return msgspec.to_builtins(
        train(folder, model, run="async", seed=seed, target=options.target, changed=SETTINGS | _changed(options.set))
    )


def synchronous(folder: Path, model: Path, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Ours, each side waiting for the other; the best of `--sync-threads`."""
    found = []
    for threads in options.sync_threads:
        changed = SETTINGS | {
            "synchronizer.sync_style": "fixed",
            "synchronizer.sync_offset": 0,
            "algorithm.sample_strategy_args": {"max_staleness": 0},
            "explorer.rollout_model.extra_engine_args": {"threads": threads},
            "trainer.engine_args": {"threads": threads},
        }
        run = f"sync{threads}"
        changed |= _changed(options.set)
        reached = train(folder, model, run=run, seed=seed, target=options.target, changed=changed)
        found.append({"threads": threads, **msgspec.to_builtins(reached)})
    return min(found, key=lambda each: each["reached_s"] or float("inf"))


def trl(folder: Path, model: Path, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """TRL, in the environment of its interpreter."""
    if not options.trl_threads:
        trials = {threads: _trl(folder, model, seed, options, threads, steps=TRIAL_STEPS) for threads in (1, 2)}
        options.trl_threads = min(trials, key=lambda threads: trials[threads]["ran_s"])
    return _trl(folder, model, seed, options, options.trl_threads)


def _trl(
    folder: Path, model: Path, seed: int, options: argparse.Namespace, threads: int, steps: int = STEPS
) -> dict[str, Any]:
    told = {"model": model, "tasks": folder / "tasks" / "train.jsonl", "folder": folder / "trl"}
    command = [options.trl, "-P", str(Path(__file__).parent / "trl" / "grpo.py"), *options.trl_arg]
    command += [f"--{name}={value}" for name, value in told.items()]
    command += [f"--seed={seed}", f"--target={options.target}", f"--threads={threads}", f"--stop={steps}"]
    quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    done = subprocess.run(command, env=environ | quiet, capture_output=True, text=True, timeout=TRL_TIMEOUT_S)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _changed(pairs: list[str]) -> dict[str, Any]:
    """The settings with `a.b=value` applied; the value is JSON."""
    return {name: json.loads(value) for name, _, value in (pair.partition("=") for pair in pairs)}


def main() -> None:
    options = read_options(
        __doc__,
        against={"choices": ("trl", "sync"), "default": "trl"},
        trl=(str, "the interpreter of TRL's environment"),
        seeds=[1, 2, 3, 4, 5],
        target=0.9,
        trl_threads=(0, "0: the faster of 1 and 2"),
        sync_threads=[1, 2],
        trl_arg={"action": "append", "default": [], "help": "for trl/grpo.py"},
        set={"action": "append", "default": [], "help": "a.b=JSON: a setting of ours"},
        folder=(Path, "kept; else a temporary one"),
    )
    if options.against == "trl" and not options.trl:
        sys.exit("--trl names the interpreter of TRL's environment; make bench-trl makes it")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    other = trl if options.against == "trl" else synchronous
    pairs = []
    for place, seed in enumerate(options.seeds):
        with tempfile.TemporaryDirectory(prefix="rftd-") as name:
            folder = (options.folder.absolute() if options.folder else Path(name)) / f"seed{seed}"
            folder.mkdir(parents=True)
            model = make_checkpoint(folder, seed=seed)
            runs = {}
            for side in (ours, other) if place % 2 else (other, ours):
                runs[side.__name__] = side(folder, model, seed, options)
                note({"seed": seed, side.__name__: runs[side.__name__]})
        times = runs["ours"]["reached_s"], runs[other.__name__]["reached_s"]
        pairs.append({"seed": seed, "ratio": round(times[0] / times[1], 3) if all(times) else None, **runs})
    ratios = [pair["ratio"] for pair in pairs if pair["ratio"] is not None]
    figures = {
        "against": options.against,
        "target": options.target,
        "median_ratio": median_of(ratios, 3) if len(ratios) == len(pairs) else None,
        "bar": BARS[options.against],
        "pairs": pairs,
    }
    tell(figures)


if __name__ == "__main__":
    main()
