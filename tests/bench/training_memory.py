"""The peak memory of a training step on a CPU: forecast and measured, for seven kinds of model and stage.

`python -P tests/bench/training_memory.py [--model FOLDER] [--case NAME]` prints one JSON object. Each case opens the
torch engine in a process of its own and takes two steps; its peak is that of the kernel above what the process held
once everything was imported. `--model`, a real model of some hundred million weights, adds SFT of short rows against
plain transformers with the same rows in each micro-batch, AdamW and float32. It fails if a forecast is further than
20 % from its peak, or if SFT takes more than 1.2 times what transformers takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))

from figures import forget_peak, memory_bytes, read_options, tell

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, LoraSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.memory_needs import training_forecast
from rftd.workers.models.tiny_model import make_tiny_model

FORECAST_BAR: Final = 0.2
TRANSFORMERS_BAR: Final = 1.2
LEAST_BYTES: Final = 1 << 30
"""A peak below it says little: what a process holds for its own is a part of it."""
THREADS: Final = 2
STEPS: Final = 2
SFT: Final = AlgorithmSpec(kind="sft", optimizer=Optimizer(lr=1e-5, decay_all=True))
GRPO: Final = AlgorithmSpec(
    kind="grpo",
    advantage="grpo",
    policy_loss="ppo",
    entropy_loss="default",
    optimizer=Optimizer(lr=1e-5, decay_all=True),
)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A model and what is trained on it."""

    model: str
    """A name of `MODELS`, or `given`."""
    algorithm: AlgorithmSpec = SFT
    micro_batch: int = 2048
    rows: tuple[int, int, int] = (8, 1, 256)
    """Prompts, responses to each, tokens of a text; a quarter of them are the prompt's."""
    dtype: str = "float32"
    checkpointing: bool = False
    lora: bool = False


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of a case."""

    peak_mib: float
    forecast_mib: float
    off_share: float
    """Forecast by peak, less one."""
    after_mib: float
    """What is held after the last step."""
    needs: dict[str, float]


def llama_like(kind: str, **settings: Any) -> Callable[[], Any]:
    """The configuration of a gated model with grouped queries."""
    return lambda: transformers.AutoConfig.for_model(
        kind, **{"num_key_value_heads": 4, "max_position_embeddings": 4096, "tie_word_embeddings": False} | settings
    )


MODELS: Final[dict[str, Callable[[], Any]]] = {
    "llama": llama_like(
        "llama", vocab_size=8000, hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12
    ),
    "qwen3": llama_like(
        "qwen3",
        vocab_size=64000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=50257, n_embd=768, n_layer=6, n_head=12, n_positions=1024),
    "gpt_neox": llama_like(
        "gpt_neox",
        vocab_size=50304,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=8,
    ),
}
CASES: Final = {
    "llama, sft": Case(model="llama"),
    "llama, grpo with a reference": Case(
        model="llama",
        rows=(2, 8, 192),
        algorithm=msgspec.structs.replace(GRPO, kl_loss="k2", kl_loss_args={"kl_coef": 0.1}),
    ),
    # Products in bfloat16 are slow on most CPUs: few rows.
    "llama, bfloat16": Case(model="llama", dtype="bfloat16", rows=(2, 1, 256)),
    "llama, adapter": Case(model="llama", lora=True),
    "qwen3, layers computed again": Case(model="qwen3", checkpointing=True, micro_batch=8192, rows=(16, 1, 512)),
    "qwen3, grpo": Case(model="qwen3", algorithm=GRPO, rows=(2, 8, 192)),
    "gpt2, sft": Case(model="gpt2"),
    "gpt_neox, sft": Case(model="gpt_neox"),
}
GIVEN: Final = {
    "given, sft of eight short rows": Case(model="given", micro_batch=4096, rows=(8, 1, 64)),
    "given, grpo": Case(model="given", algorithm=GRPO, micro_batch=2048, rows=(4, 8, 160)),
}


def make_model(name: str, folder: Path) -> Path:
    """A folder with random weights, and some tokenizer."""
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(MODELS[name]()).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(make_tiny_model(folder / "tiny", seed=0)).save_pretrained(folder)
    return folder


def stage_of(case: Case, folder: Path) -> StageSpec:
    """The stage that is trained."""
    prompts, members, tokens = case.rows
    return StageSpec(
        name="stage",
        kind="train" if case.algorithm.kind == "sft" else "both",
        total_steps=10,
        batch_size=prompts,
        train_batch_size=prompts * members,
        algorithm=case.algorithm,
        model=ModelSpec(
            path=str(folder),
            max_model_len=tokens,
            max_prompt_tokens=tokens // 4,
            max_response_tokens=tokens - tokens // 4,
            lora=LoraSpec() if case.lora else None,
        ),
        trainer=TrainerSpec(
            max_tokens_per_micro_batch=case.micro_batch,
            dtype=case.dtype,
            engine_args={"gradient_checkpointing": case.checkpointing},
        ),
    )


def batch_of(case: Case, step: int) -> TrainBatch:
    """Random texts of the longest length."""
    prompts, members, tokens = case.rows
    random = np.random.default_rng(step)
    samples = []
    for group in range(prompts):
        prompt = random.integers(7, 1000, tokens // 4)
        for _ in range(members):
            length = tokens - len(prompt)
            samples.append(
                TrainSample(
                    tokens=np.concatenate([prompt, random.integers(7, 1000, length)]).astype(np.uint32),
                    prompt_tokens=len(prompt),
                    loss_mask=np.ones(length, np.uint8),
                    logprobs=np.full(length, -9.0, np.float32),
                    advantages=np.full(length, random.normal(), np.float32),
                    group=group,
                )
            )
    return TrainBatch(step=step, stage_step=step, samples=samples)


def measure(case: Case, folder: Path) -> Peak:
    """The peak of two steps in this process."""
    stage = stage_of(case, folder)
    needs = training_forecast(stage, folder)
    warm_up()
    baseline_bytes = memory_bytes("VmRSS")
    forget_peak()
    engine = TorchTrainerEngine(threads=THREADS)
    spec = ExperimentSpec(project="p", name="n", job_dir=str(folder), stages=(stage,), config={})
    engine.open(spec, str(folder))
    engine.begin_stage(stage)
    for step in range(1, STEPS + 1):
        engine.train(batch_of(case, step))
    peak_bytes = memory_bytes("VmHWM") - baseline_bytes
    forecast_bytes = sum(need.size_bytes for need in needs)
    return Peak(
        peak_mib=round(peak_bytes / 2**20),
        forecast_mib=round(forecast_bytes / 2**20),
        off_share=round(forecast_bytes / peak_bytes - 1, 3),
        after_mib=round((memory_bytes("VmRSS") - baseline_bytes) / 2**20),
        needs={need.what: round(need.size_bytes / 2**20, 1) for need in needs},
    )


def measure_transformers(case: Case, folder: Path) -> dict[str, float]:
    """The peak of two steps of transformers' own model and torch's own AdamW, with all rows at once, in this
    process."""
    warm_up()
    torch.set_num_threads(THREADS)
    baseline_bytes = memory_bytes("VmRSS")
    forget_peak()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for step in range(1, STEPS + 1):
        texts = torch.tensor(np.stack([sample.tokens for sample in batch_of(case, step).samples]).astype(np.int64))
        labels = texts.clone()
        labels[:, : case.rows[2] // 4] = -100
        model(input_ids=texts, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {
        "peak_mib": round((memory_bytes("VmHWM") - baseline_bytes) / 2**20),
        "after_mib": round((memory_bytes("VmRSS") - baseline_bytes) / 2**20),
    }


def warm_up() -> None:
    """Imports what is imported late, by a step of the smallest model."""
    with tempfile.TemporaryDirectory() as name:
        folder = make_tiny_model(Path(name) / "model", seed=1)
        case = Case(model="tiny", rows=(1, 1, 16))
        engine = TorchTrainerEngine(threads=THREADS)
        stage = stage_of(case, folder)
        engine.open(ExperimentSpec(project="p", name="n", job_dir=name, stages=(stage,), config={}), str(folder))
        engine.close()


def in_process(how: str, name: str, folder: Path) -> Any:
    """What a process of its own says of a case."""
    words = [sys.executable, "-P", __file__, "--how", how, "--case", name, "--model", str(folder)]
    child = subprocess.run(words, capture_output=True, timeout=900, text=True)
    if child.returncode:
        sys.exit(f"{name}: {child.stderr[-2000:]}")
    return json.loads(child.stdout)


def main() -> int:
    """Prints the figures; 1 if a bar is missed."""
    options = read_options(
        __doc__,
        model=(Path, "the folder of a real model"),
        case=(str, "this one alone"),
        how={"choices": ("rftd", "transformers"), "help": argparse.SUPPRESS},
    )
    cases = CASES | GIVEN
    if options.how:
        measured = measure if options.how == "rftd" else measure_transformers
        tell(measured(cases[options.case], options.model))
        return 0
    peaks: dict[str, Any] = {}
    for name, case in (cases if options.model else CASES).items():
        if options.case not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = options.model if case.model == "given" else make_model(case.model, Path(scratch) / "model")
            peaks[name] = in_process("rftd", name, folder)
            if case.model == "given" and case.algorithm.kind == "sft":
                peaks[name]["transformers"] = theirs = in_process("transformers", name, folder)
                peaks[name]["ratio"] = round(peaks[name]["peak_mib"] / theirs["peak_mib"], 2)
        print(name, peaks[name], file=sys.stderr, flush=True)
    tell(peaks)
    assert all(peak["peak_mib"] * 2**20 > LEAST_BYTES for peak in peaks.values()), "a peak is too small to say much"
    far = [name for name, peak in peaks.items() if abs(peak["off_share"]) > FORECAST_BAR]
    return int(bool(far) or any(peak.get("ratio", 0) > TRANSFORMERS_BAR for peak in peaks.values()))


if __name__ == "__main__":
    sys.exit(main())
