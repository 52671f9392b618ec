"""What staleness costs in learning: held-out accuracy of the demo's task for bounds 0, 1, 2, 4, 8; prints JSON.

python -P tests/bench/staleness_learning.py [--seeds 1 2 3] [--bounds 0 1 2 4 8]
    [--corrections none decoupled tis icepop] [options of demo_task.py]

The demo's model, data, loss (PPO's clip, without a correction for being off policy) and settings in a bare loop, where
every rollout comes from weights exactly as many versions old as the bound allows: the worst that a bound lets happen.
Each seed's warm-up is done once. `reached_step`: the first whose last five batches had a mean reward over 0.9, or -1.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent))

from demo_task import OPTIONS, Settings, Sums, accuracy, grpo, make_stage, open_engine, sft, take
from figures import median_of, note, read_options, tell

from rftd.workers.models.tiny_model import make_tiny_model

Run = dict[str, Any]


def by_bound(seed: int, settings: Settings, cases: list[tuple[int, str]], folder: Path) -> list[Run]:
    """One seed: the warm-up, and from its weights the second stage with each bound and correction."""
    base = make_tiny_model(folder / f"model-{seed}", seed=seed)
    sums = Sums(AutoTokenizer.from_pretrained(base))
    actor: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    engine = open_engine(settings, base, folder)
    engine.begin_stage(make_stage("sft", settings))
    sft(engine, sums, settings)
    take(actor, engine.tensors())
    before = accuracy(actor, sums, sums.held_out)
    warm = folder / f"warm-{seed}"
    actor.save_pretrained(warm)
    AutoTokenizer.from_pretrained(base).save_pretrained(warm)
    runs: list[Run] = []
    for bound, correction in cases:
        stale = msgspec.structs.replace(settings, staleness=bound, correction=correction)
        generator = torch.Generator().manual_seed(seed)
        reached = grpo(open_engine(stale, warm, folder), actor, sums, seed, stale, generator)
        rounded = {name: round(value, 3) for name, value in {"sft": before, **reached}.items()}
        runs.append({"seed": seed, "bound": bound, "correction": correction, **rounded})
        note(runs[-1])
    return runs


def _case(run: Run) -> tuple[int, str]:
    return run["bound"], run["correction"]


def main() -> None:
    options = vars(read_options(__doc__, seeds=[1, 2, 3], bounds=[0, 1, 2, 4, 8], corrections=["none"], **OPTIONS))
    seeds = options.pop("seeds")
    bounds, corrections = options.pop("bounds"), options.pop("corrections")
    cases = [(bound, correction) for correction in corrections for bound in bounds]
    settings = Settings(**{**options, "offsets": tuple(options["offsets"])})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = [run for seed in seeds for run in by_bound(seed, settings, cases, Path(folder))]
    table = [
        {
            "correction": case[1],
            "bound": case[0],
            "held_out_median": statistics.median(of := [r["held_out"] for r in runs if _case(r) == case]),
            "held_out_least": min(of),
            "reached_steps": [int(r["reached_step"]) for r in runs if _case(r) == case],
        }
        for case in cases
    ]
    after_sft = median_of((run["sft"] for run in runs), 3)
    tell({"seeds": seeds, "after_sft": after_sft, "bounds": table})


if __name__ == "__main__":
    main()
