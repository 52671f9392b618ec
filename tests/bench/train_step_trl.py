"""Tokens per second of one GRPO step, ours against TRL's on the same model and tokens; prints JSON.

python -P tests/bench/train_step_trl.py --trl build/bench-trl/bin/python [--pairs 3] [--threads 1]

A Qwen2 of hidden size 256, four layers and a vocabulary of 8,192; 4 groups of 8, prompts of 64 tokens, responses of 16
to 128 (log-uniform). Ours packs and shares prompts as it does by default; TRL gets its batch padded, in micro-batches
of 8, 16 and 32 sequences, and the fastest of them counts. Tokens are those of prompts and responses, padding is none.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parent))

from figures import read_options, tell

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.models.tiny_model import make_tiny_model

VOCABULARY, PROMPT, GROUPS, MEMBERS, LONGEST = 8192, 64, 4, 8, 128
BAR = 1.3
TRL_STEP = Path(__file__).parent / "trl" / "step.py"


def make_model(folder: Path) -> Path:
    """A folder with the model and some tokenizer."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(make_tiny_model(folder / "tiny", seed=0)).save_pretrained(folder)
    return folder


def make_tokens() -> list[tuple[NDArray[np.uint32], NDArray[np.uint32], float]]:
    """(prompt, response, advantage) of each sequence."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(GROUPS):
        prompt = random.integers(7, VOCABULARY, PROMPT).astype(np.uint32)
        for _ in range(MEMBERS):
            length = int(np.exp(random.uniform(np.log(16), np.log(LONGEST + 1))))
            found.append((prompt, random.integers(7, VOCABULARY, length).astype(np.uint32), float(random.normal())))
    return found


def ours(model: Path, tokens: Any, threads: int, steps: int) -> list[float]:
    """Seconds of each step."""
    stage = StageSpec(
        name="rft",
        kind="both",
        total_steps=1000,
        batch_size=GROUPS,
        train_batch_size=GROUPS * MEMBERS,
        algorithm=AlgorithmSpec(
            kind="grpo",
            advantage="grpo",
            policy_loss="ppo",
            entropy_loss="default",
            optimizer=Optimizer(lr=1e-4, decay_all=True),
        ),
        model=ModelSpec(path=str(model), max_model_len=256, max_prompt_tokens=PROMPT, max_response_tokens=LONGEST),
        trainer=TrainerSpec(max_tokens_per_micro_batch=4096),
    )
    engine = TorchTrainerEngine(threads=threads)
    engine.open(ExperimentSpec(project="p", name="n", job_dir=str(model), stages=(stage,), config={}), str(model))
    engine.begin_stage(stage)
    samples = [
        TrainSample(
            tokens=np.concatenate([prompt, response]),
            prompt_tokens=len(prompt),
            loss_mask=np.ones(len(response), np.uint8),
            logprobs=np.full(len(response), -9.0, np.float32),
            advantages=np.full(len(response), advantage, np.float32),
            group=number // MEMBERS,
        )
        for number, (prompt, response, advantage) in enumerate(tokens)
    ]
    took_s = []
    for step in range(1, steps + 1):
        began_s = time.perf_counter()
        engine.train(TrainBatch(step=step, stage_step=step, samples=samples))
        took_s.append(time.perf_counter() - began_s)
    return took_s


def padded(tokens: Any) -> dict[str, torch.Tensor]:
    """The batch as TRL prepares it: one row for each sequence, responses padded on the right."""
    longest = max(len(response) for _, response, _ in tokens)
    rows = {"prompt_ids": [], "prompt_mask": [], "completion_ids": [], "completion_mask": []}  # type: ignore[var-annotated]
    for prompt, response, _ in tokens:
        pad = longest - len(response)
        rows["prompt_ids"].append(prompt.tolist())
        rows["prompt_mask"].append([1] * len(prompt))
        rows["completion_ids"].append(response.tolist() + [0] * pad)
        rows["completion_mask"].append([1] * len(response) + [0] * pad)
    batch = {name: torch.tensor(value) for name, value in rows.items()}
    batch["advantages"] = torch.tensor([advantage for _, _, advantage in tokens])
    batch["old_per_token_logps"] = torch.full(batch["completion_ids"].shape, -9.0)
    return batch


def theirs(python: str, model: Path, batch: Path, micro: int, threads: int, steps: int) -> list[float]:
    """Seconds of each of TRL's steps."""
    words = [python, "-P", str(TRL_STEP), "--model", str(model), "--batch", str(batch), "--micro", str(micro)]
    words += ["--folder", str(model / "out"), "--threads", str(threads), "--steps", str(steps)]
    said = subprocess.run(words, check=True, capture_output=True, timeout=500, text=True).stdout
    took_s: list[float] = json.loads(said.strip().splitlines()[-1])["took_s"]
    return took_s


def main() -> None:
    """Prints tokens per second of both, and their ratio."""
    options = read_options(
        __doc__, trl={"required": True, "help": "the interpreter of TRL's environment"}, pairs=3, steps=4, threads=1
    )
    tokens = make_tokens()
    count = sum(len(prompt) + len(response) for prompt, response, _ in tokens)
    with tempfile.TemporaryDirectory() as scratch:
        model, batch = make_model(Path(scratch) / "model"), Path(scratch) / "batch.safetensors"
        save_file(padded(tokens), batch)
        runs = []
        for _ in range(options.pairs):
            # The first step warms up.
            mine = statistics.median(ours(model, tokens, options.threads, options.steps)[1:])
            trl = {
                micro: statistics.median(theirs(options.trl, model, batch, micro, options.threads, options.steps)[1:])
                for micro in (8, 16, 32)
            }
            runs.append(
                {"ours_tokens_per_s": round(count / mine), "trl_tokens_per_s": round(count / min(trl.values()))}
            )
            runs[-1]["ratio"] = round(min(trl.values()) / mine, 2)
    ratio = statistics.median(run["ratio"] for run in runs)
    tell({"tokens": count, "ratio": ratio, "bar": BAR, "runs": runs})


if __name__ == "__main__":
    main()
