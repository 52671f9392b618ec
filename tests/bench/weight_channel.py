"""Publication of a model's weights to worker processes, against one memcpy of the same bytes in the same run.

From the first byte that the trainer copies until every worker has the version open with each tensor verified against
the announced manifest. `memory` is measured in its steady state, when files of retired versions are used again, and
for the first version, whose pages the kernel has yet to make; `checkpoint` beside it, durable on the disk.

    python -P tests/bench/weight_channel.py [--mb 500] [--workers 4] [--rounds 9] [--folder DIR] [--memory-dir DIR]
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_of, read_options, tell

from rftd.storage.files.shared_memory import shared_folder
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.registry import Channels
from rftd.workers.weights.tensor_bytes import TensorBytes, Weights

BAR = 4.0
KEPT = 4
"""Versions that stay published, as a trainer keeps them."""


def shapes(parameters: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a transformer with grouped queries, as many layers as fit."""
    hidden = 768 if parameters > 40_000_000 else 256
    found: dict[str, tuple[int, ...]] = {"embed_tokens": (40 * hidden, hidden), "norm": (hidden,)}
    layer: dict[str, tuple[int, ...]] = {
        "q": (hidden, hidden),
        "k": (hidden // 4, hidden),
        "v": (hidden // 4, hidden),
        "o": (hidden, hidden),
        "gate": (4 * hidden, hidden),
        "up": (4 * hidden, hidden),
        "down": (hidden, 4 * hidden),
        "norm_1": (hidden,),
        "norm_2": (hidden,),
    }
    left = parameters - sum(int(np.prod(shape)) for shape in found.values())
    for number in range(max(1, left // sum(int(np.prod(shape)) for shape in layer.values()))):
        found |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    return found


def model(mb: int) -> dict[str, NDArray[np.float32]]:
    """Random tensors."""
    random = np.random.default_rng(0)
    return {name: random.random(shape, dtype=np.float32) for name, shape in shapes(mb * 1_000_000 // 4).items()}


def as_weights(tensors: dict[str, NDArray[np.float32]]) -> Weights:
    """Without a copy."""
    return {
        name: TensorBytes("float32", each.shape, memoryview(each.reshape(-1).view(np.uint8)))
        for name, each in tensors.items()
    }


def memcpy_ms(tensors: dict[str, NDArray[np.float32]], rounds: int) -> float:
    """Median time to copy every byte once into memory that was touched before."""
    target = {name: each.copy() for name, each in tensors.items()}
    took = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        for name, each in tensors.items():
            np.copyto(target[name], each)
        took.append(time.perf_counter() - began_s)
    return statistics.median(took) * 1e3


class Worker:
    """A process that opens what it is told of."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", str(Path(__file__)), "--worker"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, ref: WeightsRef) -> None:
        """Returns at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(ref) + b"\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """The checksum of what was opened."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def end(self) -> None:
        """Waits for it."""
        self._process.communicate(timeout=30)


def work() -> None:
    """A worker's loop."""
    channels = Channels()
    for line in sys.stdin.buffer:
        ref = msgspec.json.decode(line, type=WeightsRef)
        with channels.of(ref.method).open(ref) as weights:
            assert weights
            print(ref.checksum, flush=True)


class Published(msgspec.Struct, frozen=True):
    """Milliseconds of one publication."""

    copied: float
    everywhere: float


def publications(
    method: str, channels: Channels, weights: Weights, workers: Sequence[Worker], count: int
) -> list[Published]:
    """Publishes as a trainer does, `count` times."""
    channel, shown, took = channels.of(method), deque[WeightsRef](), []
    for version in range(count):
        began_s = time.perf_counter()
        exported = channel.publish(weights, version=version, generation=0)
        copied_s = time.perf_counter()
        ref = WeightsRef(
            version=version,
            generation=0,
            path=exported.path,
            manifest=exported.manifest,
            checksum=exported.checksum,
            method=method,
            host=exported.host,
        )
        for worker in workers:
            worker.tell(ref)
        assert {worker.answer() for worker in workers} == {exported.checksum}
        ended_s = time.perf_counter()
        took.append(Published((copied_s - began_s) * 1e3, (ended_s - began_s) * 1e3))
        shown.append(ref)
        if len(shown) > KEPT:
            channel.retire(shown.popleft())
        channel.prepare()
    while shown:
        channel.retire(shown.popleft())
    return took


def summary(took: Sequence[Published], memcpy: float) -> dict[str, float]:
    """Medians."""
    everywhere = statistics.median(each.everywhere for each in took)
    return {
        "publish_ms": median_of((each.copied for each in took), 2),
        "everywhere_ms": round(everywhere, 2),
        "times_memcpy": round(everywhere / memcpy, 2),
    }


def main(mb: int, count: int, rounds: int, folder: Path, memory_dir: str) -> None:
    """Prints the figures."""
    tensors = model(mb)
    weights = as_weights(tensors)
    workers = [Worker() for _ in range(count)]
    channels = Channels(str(folder), memory_dir)
    warm = KEPT + 2
    before = memcpy_ms(tensors, rounds)
    memory = publications("memory", channels, weights, workers, warm + rounds)
    memcpy = statistics.median([before, memcpy_ms(tensors, rounds)])
    files = publications("checkpoint", channels, weights, workers, 1 + min(rounds, 3))
    for worker in workers:
        worker.end()
    steady = summary(memory[warm:], memcpy)
    figures = {
        "mb": round(sum(each.data.nbytes for each in weights.values()) / 1e6, 1),
        "tensors": len(weights),
        "workers": count,
        "memcpy_ms": round(memcpy, 2),
        "memory": steady,
        "memory_first": summary(memory[:1], memcpy),
        "checkpoint": summary(files[1:], memcpy),
        "bar": f"memory.times_memcpy <= {BAR:g}",
        "met": steady["times_memcpy"] <= BAR,
    }
    tell(figures)


if __name__ == "__main__":
    given = read_options(__doc__, mb=500, workers=4, rounds=9, folder=Path, memory_dir="", worker=False)
    if given.worker:
        work()
    else:
        with tempfile.TemporaryDirectory(dir=given.folder) as made:
            try:
                main(given.mb, given.workers, given.rounds, Path(made), given.memory_dir)
            finally:
                shutil.rmtree(shared_folder(made, given.memory_dir), ignore_errors=True)
