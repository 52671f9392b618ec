"""Tiny models of several architectures, and a batch that is driven without a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rftd.workers.engines.torch.rollout.batch import Batch
from rftd.workers.engines.torch.rollout.network import Network
from rftd.workers.engines.torch.rollout.noise import key_of
from rftd.workers.engines.torch.rollout.running import Running
from rftd.workers.engines.torch.rollout.uncached import UncachedRequests
from rftd.workers.generation.engine import Generation, GenerationRequest, Sampling
from rftd.workers.models.tiny_model import VOCABULARY_TOKENS, make_tokenizer

MAX_LEN = 80

_COMMON = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
_COMMON |= {"intermediate_size": 64, "max_position_embeddings": 256}
ARCHITECTURES: dict[str, dict[str, object]] = {
    "qwen2": {"model_type": "qwen2", **_COMMON, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_COMMON, "head_dim": 16},
    "llama": {"model_type": "llama", **_COMMON, "num_hidden_layers": 3, "attention_bias": True, "mlp_bias": True},
    "mistral_sliding": {"model_type": "mistral", **_COMMON, "sliding_window": 9},
    "gemma2": {"model_type": "gemma2", **_COMMON, "head_dim": 12, "sliding_window": 9, "query_pre_attn_scalar": 12},
    "qwen2_moe_sliding": {
        "model_type": "qwen2_moe",
        **_COMMON,
        **{"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "num_experts": 4},
        **{"num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    },
    "llama4_chunked": {
        "model_type": "llama4_text",
        **_COMMON,
        **{"head_dim": 12, "attention_chunk_size": 16, "num_local_experts": 4, "intermediate_size_mlp": 64},
        "layer_types": ["chunked_attention", "full_attention"],
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **_COMMON,
        **{"head_dim": 12, "sliding_window": 9, "num_local_experts": 4, "num_experts_per_tok": 2},
    },
    "gpt2": {"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": {"model_type": "gpt_neox", **_COMMON, "rotary_pct": 0.5},
}


def longrope(tokens: int) -> dict[str, object]:
    """Settings of a model whose rotary embedding turns by long factors in texts of more than `tokens` tokens."""
    factors: dict[str, object] = {"short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
    rotation = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    return {"model_type": "phi3", **_COMMON, "original_max_position_embeddings": tokens, "rope_parameters": rotation}


def dynamic(tokens: int) -> dict[str, object]:
    """Settings of a model whose rotary embedding slows down with each token beyond `tokens`."""
    rotation = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    return {"model_type": "llama", **_COMMON, "max_position_embeddings": tokens, "rope_parameters": rotation}


MOVING: dict[str, Callable[[int], dict[str, object]]] = {"longrope": longrope, "dynamic": dynamic}


def make_model(folder: Path, architecture: str | dict[str, object], *, seed: int) -> Path:
    settings = dict(ARCHITECTURES[architecture] if isinstance(architecture, str) else architecture)
    tokenizer = make_tokenizer()
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(settings.pop("model_type"), vocab_size=VOCABULARY_TOKENS, **settings, **ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():  # sharp enough that greedy choices are no near ties
            parameter.data.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def network_of(folder: Path, *, dtype: str = "float32") -> Network:
    return Network.load(str(folder), max_len=MAX_LEN, dtype=dtype)


def prompts_of(count: int, *, seed: int = 0, longest: int = 30) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(7, 105, rng.integers(1, longest + 1)).tolist()) for _ in range(count)]


def running(number: int, prompt: Sequence[int], **sampling: object) -> Running:
    settings = msgspec.convert({"seed": number, **sampling}, Sampling)
    request = GenerationRequest(id=UUID(int=number), prompt=tuple(prompt), sampling=settings)
    return Running(request, min(settings.max_tokens, MAX_LEN - len(prompt)), key_of(settings.seed))


def run(
    batch: Batch | UncachedRequests, requests: Sequence[Running], *, between: Callable[[int], None] | None = None
) -> dict[int, Generation]:
    """Feeds the requests in order as slots come free, until all are done; `between` is called before each step."""
    waiting, done, step = list(requests), {}, 0
    with torch.inference_mode():
        while waiting or batch.live:
            finished = []
            if count := min(batch.free, len(waiting)):
                finished += batch.join(waiting[:count])
                del waiting[:count]
            if between:
                between(step)
            if batch.live:
                finished += batch.step()
            step += 1
            for one in finished:
                assert isinstance(one.result, Generation)
                done[one.running.request.id.int] = one.result
    return done


def slow_but(quick: str, names: Iterable[str]) -> list[object]:
    """Each name is a parameter of a test; those that the words of `quick` leave out carry the mark `slow`."""
    stay = frozenset(quick.split())
    return [name if name in stay else pytest.param(name, marks=pytest.mark.slow) for name in names]
