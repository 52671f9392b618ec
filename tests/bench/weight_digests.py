"""What the digests of a model's weights cost, where the weights lie: of each step, and of steps with a checkpoint.

    python -P tests/bench/weight_digests.py [--mb 500] [--rounds 7] [--threads 1] [--device cuda]

`step` is what each training step takes: xxh3 on a CPU, sums of bits on a device; `step_on_host` is the model copied to
the host, then xxh3. `sha256` is over the tensors' sha256. Each round takes all of them in turn, and medians are told.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_of, read_options, tell
from weight_channel import shapes

from rftd.workers.weights.checksum import checksum
from rftd.workers.weights.tensor_digests import TensorDigests
from rftd.workers.weights.torch_bytes import bytes_of


def main(mb: int, rounds: int, threads: int, device: str) -> None:
    """Prints the figures."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape, device=device) for name, shape in shapes(mb * 1_000_000 // 4).items()}
    digests = TensorDigests(threads=threads)
    ways: dict[str, Callable[[], str]] = {
        "step": lambda: digests.of("xxh3" if device == "cpu" else "bits", tensors),
        "step_on_host": lambda: checksum(bytes_of(tensors)),
        "bits": lambda: digests.of("bits", tensors),
        "sha256": lambda: digests.of("tensors", tensors),
    }
    took_ms: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, digest in ways.items():
            began_s = time.perf_counter()
            digest()  # each of them waits for the device: its answer is on the host
            took_ms[name].append(1e3 * (time.perf_counter() - began_s))
    shown = {f"{name}_ms": median_of(times, 1) for name, times in took_ms.items()}
    tell(
        {"device": device, "mb": round(sum(each.nbytes for each in tensors.values()) / 1e6), "threads": threads} | shown
    )


if __name__ == "__main__":
    given = read_options(__doc__, mb=500, rounds=7, threads=1, device="cuda" if torch.cuda.is_available() else "cpu")
    main(given.mb, given.rounds, given.threads, given.device)
