"""The host memory that ranks take beside the file while they give their weights to explorers.

Each rank's peak above what it held before, as a multiple of the largest tensor in the file, of a model whose largest
tensors follow one another; the bar is 1.2.

    python -P tests/bench/spread_memory.py [--engine verl] [--ranks 2]        verl in an environment that has it
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from figures import tell

from rftd.streams.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, RolloutSpec, StageSpec, TrainerSpec
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.training.engines.registry import make_engine
from rftd.workers.training.ranks.controller import RankedEngine

MOST = 1.2
WIDTH = 256
ROWS = 1 << 16
"""Rows of the largest matrices: 64 MiB each, in float32."""


def figure(pid: int, name: str) -> int:
    """A figure of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def measured(engine: str, ranks: int, dtype: str, model: Path, folder: Path) -> dict[str, float]:
    """The peak of each rank, the median of three snapshots, and the largest tensor."""
    stage = StageSpec(
        name="s",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=AlgorithmSpec(kind="grpo"),
        model=ModelSpec(path=str(model), max_model_len=64, max_prompt_tokens=32, max_response_tokens=32),
        rollout=msgspec.structs.replace(RolloutSpec(), dtype=dtype),
        trainer=TrainerSpec(engine=engine, engine_args={"device": "cpu", "ranks": ranks}),
    )
    # What is freed is given back at once, and is no part of what was held before.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)
    made = make_engine(stage.trainer)
    assert isinstance(made, RankedEngine)
    made.open(ExperimentSpec(project="p", name="n", job_dir=str(folder), stages=(stage,), config={}), str(model))
    made.snapshot()  # the first one brings code and threads with it
    peaks = []
    for _ in range(3):
        before = {}
        for pid in made.pids():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
            before[pid] = figure(pid, "VmRSS")
        weights = made.snapshot().weights()
        peaks.append([figure(pid, "VmHWM") - before[pid] for pid in made.pids()])
    made.close()
    largest = max(each.data.nbytes for each in weights.values())
    farthest = sorted(max(each) for each in peaks)[1]
    return {"largest_tensor_mib": largest >> 20, "peak_mib": round(farthest / 2**20, 1), "ratio": farthest / largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engine", choices=["torch", "verl"], default="torch")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spread-") as name:
        model = make_tiny_model(
            Path(name) / "model", seed=1, hidden_size=WIDTH, layers=1, heads=4, intermediate_size=ROWS
        )
        found = {
            dtype: measured(options.engine, options.ranks, dtype, model, Path(name))
            for dtype in ("float32", "bfloat16")
        }
    # Numbers that need no rounding are written from where they lie; the others tell that something was measured.
    if not found["bfloat16"]["ratio"] > 0:
        sys.exit("this run measured nothing: no rank took memory to round its part")
    tell({"engine": options.engine, "ranks": options.ranks, **found}, may_be_zero=("ratio",))
    if any(each["ratio"] > MOST for each in found.values()):
        sys.exit(f"more than {MOST} x the largest tensor")


if __name__ == "__main__":
    main()
