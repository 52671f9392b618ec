"""Figures of one GPU: random-weight models of 0.5 and 1.5 B parameters, made on the fly, without a network.

For each model, in bfloat16, prompts of 512 tokens and answers of 1,024 to 2,048: tokens/s of the torch and the vLLM
rollout engine; trained tokens/s, and the share of a measured matmul's FLOP/s that they use (6 FLOP for each weight and
token, and attention's; of float32 weights under autocast); mismatch of log-probabilities between engine and trainer;
publication to a mapped file (the first, and those into a buffer that waits, in the machine's memory) and into the
running engine, with the longest pause of its decoding; the checksum of a step; peak memory against the engine's
forecast. Training is measured with and without `gradient_checkpointing`; where the latter needs too much memory it
says so. Figures go to the standard error too, as soon as they are there.

    python -P tests/bench/gpu_figures.py [--models 0.5B,1.5B] [--engines torch,vllm] [--requests 32]
        [--answers 1024,2048] [--rounds 5] [--micro-batch 16384] [--checkpointing on,off]
        [--group 1] [--sharing auto,never]      requests with one prompt, and whether training computes it once
    python -P tests/bench/gpu_figures.py --tiny      every code path on a CPU, with a tiny model; no figures of anything

vLLM is measured where it is installed, its CPU build with `--tiny`.

Without a GPU it prints `not run: no GPU` and nothing else, with status 0: `make bench` goes on.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from figures import median_of, read_options, tell
from gpu_experiment import MODES, TINY, Mode, Scale, experiment_of, make_model

from rftd.ops.clock import SystemClock
from rftd.ops.errors import DeviceMemoryError
from rftd.storage.files.shared_memory import MEMORY, shared_folder
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.generation.engine import Generation, GenerationRequest, RolloutEngine, Sampling
from rftd.workers.generation.engine_registry import open_engine
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.memory_needs import training_needs
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.registry import Channels


@dataclass
class Tokens:
    """What a request has drawn, and when."""

    times_s: list[float] = field(default_factory=list)

    def watch(self, tokens: Any, logprobs: Any) -> None:
        """Called by the engine."""
        self.times_s.append(time.perf_counter())


def requests_of(scale: Scale, vocabulary: int, seed: int, watched: Tokens | None = None) -> list[GenerationRequest]:
    """Random prompts; answers of lengths between the two of the scale, which no end of sequence cuts short."""
    rng = np.random.default_rng(seed)
    prompts = [
        tuple(rng.integers(7, min(vocabulary, 128), scale.prompt).tolist())
        for _ in range(-(-scale.requests // scale.group))
    ]
    lengths = np.linspace(*scale.answers, scale.requests).round().astype(int).tolist()
    return [
        GenerationRequest(
            id=UUID(int=seed << 32 | number),
            prompt=prompts[number % len(prompts)],
            sampling=Sampling(max_tokens=length, min_tokens=length, ignore_eos=True, seed=number),
            watch=watched.watch if watched is not None and number == scale.requests - 1 else None,
        )
        for number, length in enumerate(lengths)
    ]


class Publications:
    """Versions of the trainer's weights, as it publishes them."""

    def __init__(self, trainer: TorchTrainerEngine, folder: Path) -> None:
        self._trainer = trainer
        # In the machine's memory, as in a run, if that has room for two versions.
        needed_bytes = 3 * sum(each.nbytes for each in trainer.tensors().values())
        has_room = Path(MEMORY).is_dir() and shutil.disk_usage(MEMORY).free > needed_bytes
        self.place = MEMORY if has_room else str(folder)
        self._folder = shared_folder(str(folder / "job"), self.place)
        self._channel = Channels(str(folder / "job"), self.place).of("memory")
        self._version = -1
        self._last: WeightsRef | None = None
        self.times_s: list[float] = []

    def next(self) -> WeightsRef:
        """Publishes the present weights: from the device to a mapped file. The version before is retired."""
        # As the trainer does between two publications.
        if self._last is not None:
            self._channel.retire(self._last)
        self._channel.prepare()
        self._version += 1
        began_s = time.perf_counter()
        weights = self._trainer.snapshot().weights()
        exported = self._channel.publish(weights, version=self._version, generation=0)
        self.times_s.append(time.perf_counter() - began_s)
        self._last = WeightsRef(
            version=self._version,
            generation=0,
            path=exported.path,
            manifest=exported.manifest,
            checksum=exported.checksum,
            method="memory",
            host=exported.host,
        )
        return self._last

    def close(self) -> None:
        """Removes the files."""
        shutil.rmtree(self._folder, ignore_errors=True)


@asynccontextmanager
async def opened(spec: ExperimentSpec, scale: Scale) -> AsyncIterator[RolloutEngine]:
    """The engine of the experiment."""
    engine: RolloutEngine = await open_engine(spec, spec.stages[0], slots=scale.requests, clock=SystemClock())
    try:
        yield engine
    finally:
        await engine.close()


Opened: TypeAlias = Callable[[ExperimentSpec, Scale], AbstractAsyncContextManager[RolloutEngine]]


async def rollouts(
    spec: ExperimentSpec, scale: Scale, publications: Publications, vocabulary: int, opened: Opened
) -> tuple[dict[str, Any], list[tuple[GenerationRequest, Generation]]]:
    """Figures of a rollout engine, and what it drew with the published weights."""
    began_s = time.perf_counter()
    async with opened(spec, scale) as engine:
        opened_s = time.perf_counter() - began_s
        await engine.load_weights(publications.next())
        await asyncio.gather(*map(engine.generate, requests_of(scale, vocabulary, 0)))  # warms up
        asked = requests_of(scale, vocabulary, 1)
        began_s = time.perf_counter()
        drawn = await asyncio.gather(*map(engine.generate, asked))
        took_s = time.perf_counter() - began_s
        # Published before anything is drawn, for that is measured elsewhere and may take longer than the answers do.
        ref = await asyncio.to_thread(publications.next)
        watched = Tokens()
        running = asyncio.gather(*map(engine.generate, requests_of(scale, vocabulary, 2, watched)))
        while not watched.times_s:  # noqa: ASYNC110 (an engine has counters, no events)
            await asyncio.sleep(0.001)
        load_s = time.perf_counter()
        await engine.load_weights(ref)
        ended_s = time.perf_counter()
        loaded_s = ended_s - load_s
        still_running = not running.done()
        await running
    gaps = np.diff(watched.times_s)
    # The pause that an update makes is the longest gap from its beginning to shortly after its end.
    near = [gap for gap, at in zip(gaps, watched.times_s[1:], strict=True) if load_s <= at < ended_s + 0.5]
    tokens = sum(len(each.tokens) for each in drawn)
    figures: dict[str, Any] = {
        "open_s": round(opened_s, 2),
        "tokens_per_s": round(tokens / took_s, 1),
        "into_running_engine_s": round(loaded_s, 4),
        "running_when_loaded": still_running,
        "gap_between_tokens_ms": round(1e3 * float(np.median(gaps)), 3) if len(gaps) else None,
        "longest_gap_near_update_ms": round(1e3 * float(max(near)), 2) if near else None,
    }
    return figures, list(zip(asked, drawn, strict=True))


def batch_of(drawn: list[tuple[GenerationRequest, Generation]], step: int, size: int) -> TrainBatch:
    """The rollouts with random advantages."""
    rng = np.random.default_rng(step)
    samples = [
        TrainSample(
            tokens=np.array([*request.prompt, *answer.tokens], np.uint32),
            prompt_tokens=len(request.prompt),
            loss_mask=np.ones(len(answer.tokens), np.uint8),
            logprobs=np.array(answer.logprobs, np.float32),
            advantages=np.full(len(answer.tokens), rng.normal(), np.float32),
            group=number % -(-len(drawn) // size),
        )
        for number, (request, answer) in enumerate(drawn)
    ]
    return TrainBatch(step=step, stage_step=step, samples=samples)


def note(what: str, figures: dict[str, Any]) -> None:
    """Shows figures at once: a run that is cut short has told what it had found."""
    print(what, json.dumps(figures), file=sys.stderr, flush=True)


def wait(device: str) -> None:
    """Returns once the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def matmul_flops_per_s(scale: Scale) -> float:
    """What a bfloat16 matmul of square matrices reaches here."""
    one, two = (torch.randn(scale.matmul, scale.matmul, device=scale.device, dtype=torch.bfloat16) for _ in range(2))
    times_s = []
    for _ in range(scale.rounds + 2):
        wait(scale.device)
        began_s = time.perf_counter()
        torch.mm(one, two)
        wait(scale.device)
        times_s.append(time.perf_counter() - began_s)
    return 2 * scale.matmul**3 / statistics.median(times_s[2:])


def training(
    trainer: TorchTrainerEngine, spec: ExperimentSpec, scale: Scale, drawn: list[tuple[GenerationRequest, Generation]]
) -> dict[str, Any]:
    """Figures of training steps, and of the checksum after each."""
    stage = spec.stages[0]
    if scale.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.begin_stage(stage)
    weights = sum(each.numel() for each in trainer.tensors().values())
    times_s, sums_s, mismatch = [], [], {}
    for step in range(1, scale.rounds + 2):
        batch = batch_of(drawn, step, scale.group)
        wait(scale.device)
        began_s = time.perf_counter()
        result = trainer.train(batch)
        wait(scale.device)
        times_s.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        trainer.checksum()
        sums_s.append(time.perf_counter() - began_s)
        if step == 1:  # on the weights that drew the tokens
            mismatch = {name: value for name, value in result.metrics.items() if "mismatch" in name or "ppo_kl" in name}
    tokens = sum(len(sample.tokens) for sample in batch.samples)
    config = trainer._model.config
    attention = 12 * config.num_hidden_layers * config.hidden_size * sum(len(s.tokens) ** 2 / 2 for s in batch.samples)
    took_s = statistics.median(times_s[1:])
    forecast = sum(need.size_bytes for need in training_needs(stage, Path(stage.model.path)))
    return {
        "parameters": weights,
        "trained_tokens_per_s": round(tokens / took_s, 1),
        "of_matmul": float((6 * weights * tokens + attention) / took_s / matmul_flops_per_s(scale)),
        "step_checksum_ms": round(1e3 * statistics.median(sums_s), 3),
        "mismatch": mismatch,
        "forecast_bytes": forecast,
        "peak_bytes": torch.cuda.max_memory_allocated() if scale.device == "cuda" else None,
    }


async def measured(
    name: str,
    engines: Sequence[str],
    scale: Scale,
    folder: Path,
    opened: Opened = opened,
    modes: Sequence[Mode] = MODES,
) -> dict[str, Any]:
    """All figures of one model."""
    model = make_model(folder / "model", name, scale.device)
    trainer = TorchTrainerEngine(threads=1)
    spec = experiment_of(model, folder / "job", "torch", scale)
    trainer.open(spec, str(model))
    publications = Publications(trainer, folder)
    vocabulary = trainer._model.config.vocab_size
    found: dict[str, Any] = {"model": name}
    drawn: list[tuple[GenerationRequest, Generation]] = []
    for _ in range(scale.rounds):
        publications.next()
    for engine in engines:
        each = experiment_of(model, folder / "job", engine, scale)
        found[engine], drawn = await rollouts(each, scale, publications, vocabulary, opened)
        note(f"{name} {engine}", found[engine])
        for mode in modes:
            spec = experiment_of(
                model, folder / "job", "torch", scale, checkpointing=mode.checkpointing, sharing=mode.sharing
            )
            name_of_mode = f"{'recomputed' if mode.checkpointing else 'kept'}, sharing {mode.sharing}"
            trainer.close()
            gc.collect()
            if scale.device == "cuda":
                torch.cuda.empty_cache()
            try:
                trainer.open(spec, str(model))
                found[engine][name_of_mode] = training(trainer, spec, scale, drawn)
            except (torch.OutOfMemoryError, DeviceMemoryError) as error:
                found[engine][name_of_mode] = {"out_of_memory": str(error).split(". ")[0]}
            note(f"{name} {engine} {name_of_mode}", found[engine][name_of_mode])
    found["device_to_mapped_file_s"] = median_of(publications.times_s[1:], 4)
    found["mapped_in"] = publications.place
    found["first_to_mapped_file_s"] = round(publications.times_s[0], 4)
    publications.close()
    trainer.close()
    return found


def main() -> None:
    """Prints the figures."""
    asked = read_options(
        __doc__,
        models="0.5B,1.5B",
        engines="torch,vllm",
        requests=32,
        answers="1024,2048",
        rounds=5,
        micro_batch=16_384,
        checkpointing="on,off",
        sharing="auto",
        group=1,
        tiny=False,
    )
    if not asked.tiny and not torch.cuda.is_available():
        print("not run: no GPU")
        return
    # vLLM logs to the standard output, which is for the figures.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    engines = asked.engines.split(",")
    left_out = [each for each in engines if each == "vllm" and importlib.util.find_spec("vllm") is None]
    if asked.tiny:
        scale = TINY
        models = ["tiny"]
    else:
        shortest, longest = map(int, asked.answers.split(","))
        scale = Scale(
            "cuda", 512, (shortest, longest), asked.requests, asked.rounds, 8192, asked.micro_batch, asked.group
        )
        models = asked.models.split(",")
    engines = [each for each in engines if each not in left_out]
    modes = [
        Mode(kind == "on", sharing) for sharing in asked.sharing.split(",") for kind in asked.checkpointing.split(",")
    ]
    found = []
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            found.append(asyncio.run(measured(name, engines, scale, Path(folder), modes=modes)))
    device = torch.cuda.get_device_name() if scale.device == "cuda" else "cpu"
    tell({"device": device, "not_installed": left_out, "models": found})


if __name__ == "__main__":
    main()
