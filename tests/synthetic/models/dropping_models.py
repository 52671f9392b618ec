"""Small models whose configuration drops units out, several of them in layers that pass `training` themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES: Final[dict[str, object]] = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
KINDS: Final[dict[str, dict[str, object]]] = {
    "opt": {**SIZES, "ffn_dim": 96, "word_embed_proj_dim": 48, "dropout": 0.3, "layerdrop": 0.5},
    "starcoder2": {**SIZES, "num_key_value_heads": 2, "intermediate_size": 96, "embedding_dropout": 0.3},
    "falcon": {**SIZES, "hidden_dropout": 0.3, "attention_dropout": 0.3, "alibi": False},
    "biogpt": {**SIZES, "intermediate_size": 96, "hidden_dropout_prob": 0.3, "layerdrop": 0.5},
    "xglm": {"d_model": 48, "num_layers": 2, "attention_heads": 4, "ffn_dim": 96, "dropout": 0.3, "layerdrop": 0.5},
    "gpt2": {"n_embd": 48, "n_layer": 2, "n_head": 4, "resid_pdrop": 0.3},
}


def dropping_model(folder: Path, kind: str) -> Path:
    """A folder of random weights, without a tokenizer."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, vocab_size=128, max_position_embeddings=512, **KINDS[kind], **ids)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
