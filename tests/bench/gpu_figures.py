"""Figures of one GPU: random-weight models of 0.5 and 1.5 B parameters, made on the fly, without a network.

For each model, in bfloat16, prompts of 512 tokens and answers of 1,024 to 2,048: tokens/s of the torch and the vLLM
rollout engine; trained tokens/s, and the share of a measured matmul's FLOP/s that they use (6 FLOP for each weight and
token, and attention's; of float32 weights under autocast); mismatch of log-probabilities between engine and trainer;
publication to a mapped file and into the running engine, with the longest pause of its decoding; the checksum of a
step; peak memory against the engine's forecast.

    python -P tests/bench/gpu_figures.py [--models 0.5B,1.5B] [--engines torch,vllm] [--requests 32]
    python -P tests/bench/gpu_figures.py --tiny      every code path on a CPU, with a tiny model; no figures of anything

vLLM is measured where it is installed, its CPU build with `--tiny`.

Without a GPU it prints `not run: no GPU` and nothing else, with status 0: `make bench` goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parent))

from figures import tell

from rftd.ops.clock import SystemClock
from rftd.streams.engine_needs import EngineNeeds
from rftd.streams.spec import (
    AlgorithmSpec,
    ExperimentSpec,
    ModelSpec,
    OptimizerSpec,
    RolloutSpec,
    StageSpec,
    TrainerSpec,
)
from rftd.workers.models.tiny_model import make_tiny_model, make_tokenizer
from rftd.workers.rollout.engine import Generation, GenerationRequest, RolloutEngine, Sampling
from rftd.workers.rollout.engines.registry import open_engine
from rftd.workers.training.engine import TrainBatch, TrainSample
from rftd.workers.training.engines.torch.engine import TorchTrainerEngine
from rftd.workers.training.memory_needs import training_needs
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.registry import Channels

SHAPES: dict[str, dict[str, int]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
}
"""Those of Qwen2.5, with two groups of keys and values and a vocabulary of 151,936."""


@dataclass(frozen=True)
class Scale:
    """What is run."""

    device: str
    prompt: int
    answers: tuple[int, int]
    requests: int
    rounds: int
    matmul: int


TINY: Final = Scale("cpu", 16, (8, 24), 4, 2, 64)


def make_model(folder: Path, name: str) -> Path:
    """A folder with random weights in bfloat16 and the tiny model's tokenizer."""
    if name == "tiny":
        return make_tiny_model(folder, seed=1, hidden_size=64, heads=2)  # heads of 32: vLLM has no smaller ones
    config = Qwen2Config(
        vocab_size=151_936,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        **SHAPES[name],
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def experiment_of(model: Path, job: Path, engine: str, scale: Scale) -> ExperimentSpec:
    """One GRPO stage on the model."""
    longest = scale.prompt + scale.answers[1]
    arguments: dict[str, Any] = {"device": scale.device} if engine == "torch" else {}
    stage = StageSpec(
        name="rft",
        kind="both",
        total_steps=1000,
        batch_size=4,
        train_batch_size=scale.requests,
        algorithm=AlgorithmSpec(kind="grpo", advantage="grpo", policy_loss="ppo", optimizer=OptimizerSpec(lr=1e-6)),
        model=ModelSpec(
            path=str(model), max_model_len=longest, max_prompt_tokens=scale.prompt, max_response_tokens=scale.answers[1]
        ),
        rollout=RolloutSpec(
            engine=engine,
            dtype="bfloat16",
            engine_args=arguments,
            # The trainer is on the same GPU.
            needs=EngineNeeds(gpu_memory_utilization=0.4),
        ),
        trainer=TrainerSpec(
            engine="torch",
            dtype="bfloat16",
            max_tokens_per_micro_batch=max(longest, 16_384),
            engine_args={"device": scale.device, "gradient_checkpointing": scale.device == "cuda"},
        ),
    )
    return ExperimentSpec(project="bench", name="gpu", job_dir=str(job), stages=(stage,), config={})


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
    lengths = np.linspace(*scale.answers, scale.requests).round().astype(int).tolist()
    return [
        GenerationRequest(
            id=UUID(int=seed << 32 | number),
            prompt=tuple(rng.integers(7, min(vocabulary, 128), scale.prompt).tolist()),
            sampling=Sampling(max_tokens=length, min_tokens=length, ignore_eos=True, seed=number),
            watch=watched.watch if watched is not None and number == scale.requests - 1 else None,
        )
        for number, length in enumerate(lengths)
    ]


class Publications:
    """Versions of the trainer's weights, as it publishes them."""

    def __init__(self, trainer: TorchTrainerEngine, folder: Path) -> None:
        self._trainer = trainer
        self._channel = Channels(str(folder), str(folder / "memory")).of("memory")
        self._version = -1
        self.times_s: list[float] = []

    def next(self) -> WeightsRef:
        """Publishes the present weights: from the device to a mapped file."""
        self._version += 1
        began_s = time.perf_counter()
        weights = self._trainer.snapshot().weights()
        exported = self._channel.publish(weights, version=self._version, generation=0)
        self.times_s.append(time.perf_counter() - began_s)
        return WeightsRef(
            version=self._version,
            generation=0,
            path=exported.path,
            manifest=exported.manifest,
            checksum=exported.checksum,
            method="memory",
            host=exported.host,
        )


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
        watched = Tokens()
        running = asyncio.gather(*map(engine.generate, requests_of(scale, vocabulary, 2, watched)))
        ref = await asyncio.to_thread(publications.next)
        began_s = time.perf_counter()
        await engine.load_weights(ref)
        loaded_s = time.perf_counter() - began_s
        ended_s = time.perf_counter()
        await running
    gaps = np.diff(watched.times_s)
    # The pause that a swap makes is the longest gap that has the end of the update within it or close by.
    near = [gap for gap, at in zip(gaps, watched.times_s[1:], strict=True) if abs(at - ended_s) < max(1.0, loaded_s)]
    tokens = sum(len(each.tokens) for each in drawn)
    figures: dict[str, Any] = {
        "open_s": round(opened_s, 2),
        "tokens_per_s": round(tokens / took_s, 1),
        "into_running_engine_s": round(loaded_s, 4),
        "gap_between_tokens_ms": round(1e3 * float(np.median(gaps)), 3) if len(gaps) else None,
        "longest_gap_near_update_ms": round(1e3 * float(max(near)), 2) if near else None,
    }
    return figures, list(zip(asked, drawn, strict=True))


def batch_of(drawn: list[tuple[GenerationRequest, Generation]], step: int) -> TrainBatch:
    """The rollouts with random advantages."""
    rng = np.random.default_rng(step)
    samples = [
        TrainSample(
            tokens=np.array([*request.prompt, *answer.tokens], np.uint32),
            prompt_tokens=len(request.prompt),
            loss_mask=np.ones(len(answer.tokens), np.uint8),
            logprobs=np.array(answer.logprobs, np.float32),
            advantages=np.full(len(answer.tokens), rng.normal(), np.float32),
            group=number // 4,
        )
        for number, (request, answer) in enumerate(drawn)
    ]
    return TrainBatch(step=step, stage_step=step, samples=samples)


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
        batch = batch_of(drawn, step)
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
    name: str, engines: Sequence[str], scale: Scale, folder: Path, opened: Opened = opened
) -> dict[str, Any]:
    """All figures of one model."""
    model = make_model(folder / "model", name)
    trainer = TorchTrainerEngine(threads=1)
    spec = experiment_of(model, folder / "job", "torch", scale)
    trainer.open(spec, str(model))
    publications = Publications(trainer, folder)
    vocabulary = trainer._model.config.vocab_size
    found: dict[str, Any] = {"model": name}
    drawn: list[tuple[GenerationRequest, Generation]] = []
    for engine in engines:
        each = experiment_of(model, folder / "job", engine, scale)
        found[engine], drawn = await rollouts(each, scale, publications, vocabulary, opened)
        found[engine] |= training(trainer, spec, scale, drawn)
    found["device_to_mapped_file_s"] = round(statistics.median(publications.times_s), 4)
    trainer.close()
    return found


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="0.5B,1.5B")
    parser.add_argument("--engines", default="torch,vllm")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
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
        scale = Scale("cuda", 512, (1024, 2048), asked.requests, 5, 8192)
        models = asked.models.split(",")
    engines = [each for each in engines if each not in left_out]
    found = []
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            found.append(asyncio.run(measured(name, engines, scale, Path(folder))))
    device = torch.cuda.get_device_name() if scale.device == "cuda" else "cpu"
    tell({"device": device, "not_installed": left_out, "models": found})


if __name__ == "__main__":
    main()
