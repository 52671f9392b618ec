"""Megatron's layers computed by torch, without transformer-engine, on a CPU or a GPU.

Texts of a micro-batch are padded at the end, where causal attention hides the padding from all tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import MegatronModule
from torch import Tensor


class TorchAttention(MegatronModule):  # type: ignore[misc]
    """torch's attention over this rank's heads, in place of Megatron's, which needs CUDA."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        """`softmax_scale` is the factor of the scores; None: torch's default."""
        super().__init__(config)
        self._scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Returns the attended values  # query [L, B, heads, W], key and value [L, B, groups, W] -> [L, B, heads *
        W]
        """
        queries, keys, values = (heads.permute(1, 2, 0, 3) for heads in (query, key, value))
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=self._scale, enable_gqa=True
        )
        joined: Tensor = attended.permute(2, 0, 1, 3).flatten(2)
        return joined


def torch_layers(config: Any) -> Any:
    """Returns Megatron's specification of a decoder layer, with modules computed by torch."""
    layers = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    layers.submodules.self_attention.submodules.core_attention = TorchAttention
    return layers
