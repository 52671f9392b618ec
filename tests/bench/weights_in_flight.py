"""The time for which decoding stands still while the torch rollout engine takes new weights, against one copy of them.

Requests run all the time. Weights are published beforehand; from each `load_weights` to its end the gaps between two
decode steps are measured on the decode thread, and the longest counts. Beside it: a copy of the same tensors in place,
and how much slower the steps are meanwhile.

    python -P tests/bench/weights_in_flight.py [--mb 500] [--rounds 7] [--threads 1] [--method memory]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_of, read_options, tell

from rftd.workers.engines.torch.rollout.engine import TorchRolloutEngine
from rftd.workers.generation.engine import GenerationRequest, Sampling
from rftd.workers.models.tiny_model import make_tiny_model
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.registry import Channels
from rftd.workers.weights.torch_bytes import bytes_of

HIDDEN = 1024
LAYER_BYTES = 4 * (4 * HIDDEN**2 + 3 * HIDDEN * 4 * HIDDEN)
SLOTS = 4
MAX_LEN = 256


class Steps:
    """When each decode step began and ended, written by the decode thread."""

    def __init__(self, engine: TorchRolloutEngine) -> None:
        self.times: list[tuple[float, float]] = []
        self._step = engine._loop._batch.step
        engine._loop._batch.step = self.step  # type: ignore[method-assign]

    def step(self):  # type: ignore[no-untyped-def]
        begin = time.perf_counter()
        done = self._step()
        self.times.append((begin, time.perf_counter()))
        return done

    def between(self, begin: float, end: float) -> tuple[list[float], list[float]]:
        """Gaps between steps that overlap with this time, and how long its steps took."""
        times = list(self.times)
        gaps = [two[0] - one[1] for one, two in pairwise(times) if two[0] > begin and one[1] < end]
        return gaps, [last - first for first, last in times if first > begin and last < end]


async def run_for_ever(engine: TorchRolloutEngine, number: int) -> None:
    while True:
        sampling = Sampling(max_tokens=MAX_LEN - 8, min_tokens=MAX_LEN - 8, seed=number)
        await engine.generate(GenerationRequest(id=UUID(int=number), prompt=(20, 21, 22, 23), sampling=sampling))


def copy_ms(tensors: dict[str, torch.Tensor]) -> float:
    """The fastest of several copies in place."""
    there = {name: tensor.clone() for name, tensor in tensors.items()}
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        for name, tensor in tensors.items():
            there[name].copy_(tensor)
        took.append(1000 * (time.perf_counter() - begin))
    return min(took)


async def measure(folder: Path, *, mb: int, rounds: int, threads: int, method: str) -> dict[str, object]:
    torch.set_num_threads(threads)
    layers = max(1, round(mb * 1e6 / LAYER_BYTES))
    model = make_tiny_model(
        folder / "model", seed=1, hidden_size=HIDDEN, layers=layers, heads=8, intermediate_size=4 * HIDDEN
    )
    tensors = load_file(model / "model.safetensors")
    channels = Channels(str(folder / "job"), epoch=1)
    refs = []
    for version in range(2):
        written = channels.of(method).publish(bytes_of(tensors), version=version, generation=0)
        refs.append(
            WeightsRef(
                version=version,
                generation=0,
                path=written.path,
                manifest=written.manifest,
                checksum=written.checksum,
                method=method,
                host=written.host,
            )
        )
    engine = await TorchRolloutEngine.open(str(model), slots=SLOTS, max_model_len=MAX_LEN, threads=threads)
    steps = Steps(engine)
    await engine.load_weights(refs[0])
    requests = [asyncio.ensure_future(run_for_ever(engine, number)) for number in range(SLOTS)]
    await asyncio.sleep(3.0)
    still, loads, meanwhile = [], [], []
    quiet_s = statistics.median(last - first for first, last in steps.times)
    for number in range(rounds):
        begin = time.perf_counter()
        await engine.load_weights(refs[(number + 1) % 2])
        end = time.perf_counter()
        await asyncio.sleep(2.0)
        gaps, took = steps.between(begin, end)
        still.append(1000 * max(gaps))
        loads.append(1000 * (end - begin))
        meanwhile += took
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    await engine.close()
    for ref in refs:
        channels.of(method).retire(ref)
    copy = copy_ms(tensors)
    return {
        "size_mb": round(sum(tensor.nbytes for tensor in tensors.values()) / 1e6),
        "method": method,
        "threads": threads,
        "rounds": rounds,
        "still_ms": median_of(still, 1),
        "still_max_ms": round(max(still), 1),
        "copy_ms": round(copy, 1),
        "ratio": round(statistics.median(still) / copy, 2),
        "load_ms": median_of(loads, 1),
        "step_ms": round(1000 * quiet_s, 1),
        "step_meanwhile_ms": round(1000 * statistics.median(meanwhile or [quiet_s]), 1),
        "steps_meanwhile": len(meanwhile),
    }


def main() -> None:
    chosen = read_options(__doc__, mb=500, rounds=7, threads=1, method="memory")
    with tempfile.TemporaryDirectory() as folder:
        tell(asyncio.run(measure(Path(folder), **vars(chosen))))


if __name__ == "__main__":
    main()
