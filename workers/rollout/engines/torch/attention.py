"""Attention of the engine, registered with transformers under a name of its own.

Every mask is made by the engine and added to the scores, so transformers builds none. A sliding window is cut here,
from the layer's own setting.
"""

from __future__ import annotations

from typing import Final

import torch
from transformers import AttentionInterface

from rftd.ops.errors import RolloutError

NAME: Final = "rftd_slots"


def register() -> None:
    """Makes `attn_implementation=NAME` known to transformers; repeating it changes nothing."""
    AttentionInterface.register(NAME, attend)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [N, H, Q, D]
    key: torch.Tensor,  # [N, G, W, D]
    value: torch.Tensor,  # [N, G, W, D']
    attention_mask: torch.Tensor,  # [N, 1, Q, W], added
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """What each query gathers  # [N, Q, H, D']. The last query belongs to the last column."""
    if s_aux is not None:
        raise RolloutError("attention sinks are not supported by the torch engine", fix="use the vllm engine")
    del module, dropout
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows, heads, queries, _size = query.shape
    if sliding_window is not None and key.shape[2] > sliding_window:
        if queries == 1:
            key, value = key[:, :, -sliding_window:], value[:, :, -sliding_window:]
            attention_mask = attention_mask[..., -sliding_window:]
        else:
            attention_mask = attention_mask + _outside(sliding_window, queries, attention_mask)
    if queries > 1 and softcap is None:
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scale, enable_gqa=key.shape[1] != heads
        )
        return mixed.transpose(1, 2), None
    groups = key.shape[1]
    # The heads that share a key attend together: no copy of the key for each. [N, G, H/G * Q, D]
    folded = query.reshape(rows, groups, heads // groups * queries, query.shape[-1])
    scores = torch.matmul(folded, key.transpose(2, 3)).mul_(scale)  # [N, G, H/G * Q, W]
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if queries > 1:
        attention_mask = attention_mask.repeat(1, 1, heads // groups, 1)
    weights = torch.softmax(scores.add_(attention_mask), -1)
    mixed = torch.matmul(weights, value)
    return mixed.reshape(rows, heads, queries, value.shape[-1]).transpose(1, 2), None


def _outside(window: int, queries: int, mask: torch.Tensor) -> torch.Tensor:
    """Very negative where a column is `window` or more before the query  # [Q, W]"""
    distance = torch.ones(queries, mask.shape[-1], device=mask.device).tril(mask.shape[-1] - queries - window)
    return distance.to(mask.dtype) * masked(mask.dtype)


def masked(dtype: torch.dtype) -> float:
    """What is added to the score of a column that must not be seen.

    Not minus infinity: a row without any visible column, such as padding, would be NaN and poison its neighbours.
    """
    return torch.finfo(dtype).min / 4
