"""The host memory that ranks take beside the file while they give their weights away: to explorers, and into a folder.

Each rank's peak above what it held before, as a multiple of the largest tensor in the file, of a model whose largest
tensors follow one another; the bar is 1.2. Beside that: the trainer process while each channel publishes them, and a
process that takes them, beside the copy that the channel `nccl` (over gloo) has on either side; and the ranks while
they write the folder for transformers. Memory that is mapped from a file is not counted there: the system can take it
back.

    python -P tests/bench/spread_memory.py [--engine verl] [--ranks 2]        verl in an environment that has it
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import forget_peak, memory_bytes, read_options, tell
from synthetic.models.weight_receivers import ref_of

from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, RolloutSpec, StageSpec, TrainerSpec
from rftd.workers.engines.ranks.controller import RankedEngine
from rftd.workers.learning.engine_registry import make_engine
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights import safetensors
from rftd.workers.weights.registry import Channels, open_weights

MOST = 1.2
METHODS = ("checkpoint", "memory", "nccl")
RATIOS = ("ratio", "hf_ratio", *(f"{method}{end}_ratio" for method in METHODS for end in ("", "_taken")))
WIDTH = 256
ROWS = 1 << 16
"""Rows of the largest matrices: 64 MiB each, in float32."""


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
            forget_peak(pid)  # the peak begins anew
            before[pid] = memory_bytes("VmRSS", pid)
        weights = made.snapshot().weights()
        peaks.append([memory_bytes("VmHWM", pid) - before[pid] for pid in made.pids()])
    largest = max(each.data.nbytes for each in weights.values())
    farthest = sorted(max(each) for each in peaks)[1]
    found = {"largest_tensor_mib": largest >> 20, "peak_mib": round(farthest / 2**20, 1), "ratio": farthest / largest}
    channels = Channels(str(folder / f"job-{dtype}"), str(folder / f"memory-{dtype}"))
    for method in METHODS:
        channel = channels.of(method)
        with Watched([os.getpid()]) as watched:
            exported = channel.publish(made.snapshot().weights(), version=1, generation=0)
        held = exported.size_bytes if method == "nccl" else 0
        found[f"{method}_ratio"] = (watched.peak - held) / largest
        ref = ref_of(method, exported)
        with Watched([os.getpid()]) as watched, open_weights(ref):
            pass
        # Who takes a version from another process has a copy of it from then on.
        found[f"{method}_taken_ratio"] = (watched.peak - held) / largest
        channel.retire(ref)
    with Watched(made.pids()) as watched:
        made.save(folder / f"saved-{dtype}", hf=True)
    kept = safetensors.read(folder / f"saved-{dtype}" / "actor" / "huggingface" / "model.safetensors")
    if dtype == "float32" and any(kept[name].data != each.data for name, each in weights.items()):
        sys.exit("the folder for transformers has other weights than the ranks")
    # The folder is in float32 whatever explorers get.
    found["hf_ratio"] = watched.peak / (WIDTH * ROWS * 4)
    made.close()
    return found


class Watched:
    """The most memory of its own that one of some processes takes within, above what it had before; looked at often."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self.peak = 0

    def __enter__(self) -> Self:
        self._before = {pid: memory_bytes("RssAnon", pid) for pid in self._pids}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.001):
            for pid, before in self._before.items():
                self.peak = max(self.peak, memory_bytes("RssAnon", pid) - before)


def main() -> None:
    options = read_options(__doc__, engine={"choices": ["torch", "verl"], "default": "torch"}, ranks=2)
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
    tell({"engine": options.engine, "ranks": options.ranks, **found}, may_be_zero=RATIOS)
    if any(each[name] > MOST for each in found.values() for name in RATIOS):
        sys.exit(f"more than {MOST} x the largest tensor")


if __name__ == "__main__":
    main()
