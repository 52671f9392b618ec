"""The model, the scale and the experiment of `gpu_figures`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rftd.streams.spec.engines import EngineNeeds
from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, RolloutSpec, StageSpec, TrainerSpec
from rftd.workers.models.tiny_model import make_tiny_model, make_tokenizer

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
    micro_batch: int
    group: int = 1
    """Requests with one prompt."""


TINY: Final = Scale("cpu", 16, (8, 24), 4, 2, 64, 256)


class Mode(NamedTuple):
    """How training is measured."""

    checkpointing: bool
    sharing: str


MODES: Final = (Mode(True, "auto"), Mode(False, "auto"))


def make_model(folder: Path, name: str, device: str) -> Path:
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
    with torch.device(device):  # billions of random numbers take a processor a minute
        model = Qwen2ForCausalLM(config).to(torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def experiment_of(
    model: Path, job: Path, engine: str, scale: Scale, *, checkpointing: bool = False, sharing: str = "auto"
) -> ExperimentSpec:
    """One GRPO stage on the model."""
    longest = scale.prompt + scale.answers[1]
    arguments: dict[str, Any] = {"device": scale.device} if engine == "torch" else {}
    stage = StageSpec(
        name="rft",
        kind="both",
        total_steps=1000,
        batch_size=4,
        train_batch_size=scale.requests,
        algorithm=AlgorithmSpec(
            kind="grpo", advantage="grpo", policy_loss="ppo", optimizer=Optimizer(lr=1e-6, decay_all=True)
        ),
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
            max_tokens_per_micro_batch=max(longest, scale.micro_batch),
            engine_args={
                "device": scale.device,
                "gradient_checkpointing": checkpointing,
                "prefix_sharing": sharing,
            },
        ),
    )
    return ExperimentSpec(project="bench", name="gpu", job_dir=str(job), stages=(stage,), config={})
