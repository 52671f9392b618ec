"""Small decoders of other types than the demo's, with its tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def make_decoder(model_type: str, beside: Path) -> Path:
    """The folder of a new model of this type in the place of the one in `beside`; norms differ from 1."""
    config = AutoConfig.for_model(
        model_type,
        vocab_size=128,
        hidden_size=32,
        intermediate_size=120,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=False,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.copy_(1 + 0.3 * torch.randn_like(value))
    (beside / "model.safetensors").unlink()
    model.save_pretrained(beside)
    return beside
