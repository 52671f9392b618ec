"""Megatron's layers as torch computes them: no transformer-engine is needed, on a CPU or a GPU.

Texts of a micro-batch are padded at their ends, so that causal attention alone keeps padding from counting.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import MegatronModule
from torch import Tensor


class TorchAttention(MegatronModule):  # type: ignore[misc]
    """torch's attention over the heads of this rank, in the place of Megatron's own, which needs CUDA."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config)
        self._scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """The attended values  # query [L, B, heads, W], the others [L, B, groups, W] -> [L, B, heads * W]"""
        queries, keys, values = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=self._scale, enable_gqa=True
        )
        made: Tensor = found.permute(2, 0, 1, 3).flatten(2)
        return made


def torch_layers(config: Any) -> Any:
    """The specification of a decoder's layer for Megatron, of modules that torch computes."""
    made = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    made.submodules.self_attention.submodules.core_attention = TorchAttention
    return made
