"""Attention of the engine, registered with transformers under a separate name.

Every mask is made by the engine and added to the scores, so transformers builds none. A sliding window or a chunk is
applied here, from the layer's own setting.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn import functional
from transformers import AttentionInterface

NAME: Final = "rftd_slots"
"""Name under which transformers finds the engine's attention."""
_HALF: Final = (torch.bfloat16, torch.float16)
"""Dtypes of half precision."""


def register() -> None:
    """Registers `attn_implementation=NAME` with transformers. Idempotent."""
    AttentionInterface.register(NAME, attend)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [N, H, Q, D]
    key: torch.Tensor,  # [N, G, W, D]
    value: torch.Tensor,  # [N, G, W, D']
    attention_mask: torch.Tensor,  # [N, 1, Q, W], added
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """Returns the values gathered by each query  # [N, Q, H, D']. The last query belongs to the last column."""
    del dropout
    # Some layers have a window and leave its use to the mask.
    sliding_window = settings.get("sliding_window", getattr(module, "sliding_window", None))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows, heads, queries, _size = query.shape
    if sliding_window is not None and key.shape[2] > sliding_window:
        # A decode step sees only the window's last columns: cutting the rest saves their attention; a mask would not.
        if queries == 1:
            key = key[:, :, -sliding_window:]
            value = value[:, :, -sliding_window:]
            attention_mask = attention_mask[..., -sliding_window:]
        else:
            attention_mask = attention_mask + _outside(sliding_window, queries, attention_mask)
    chunk = _chunk_of(module)
    if chunk is not None and key.shape[2] > chunk:
        attention_mask = attention_mask + _before_chunk(chunk, attention_mask)
    groups = key.shape[1]
    plain = softcap is None and s_aux is None
    if plain and queries > 1:
        if query.is_cuda and groups != heads:
            # On a GPU only the flash kernel shares keys, and it takes no mask: the other kernels would hold all scores
            # at once.
            key = key.repeat_interleave(heads // groups, 1)
            value = value.repeat_interleave(heads // groups, 1)
            groups = heads
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scale, enable_gqa=groups != heads
        )
        return mixed.transpose(1, 2), None
    # Heads sharing a key attend together, without copies of the key. [N, G, H/G * Q, D]
    folded = query.reshape(rows, groups, heads // groups * queries, query.shape[-1])
    if queries > 1:
        attention_mask = attention_mask.repeat(1, 1, heads // groups, 1)
    if plain and query.dtype in _HALF:
        mixed = functional.scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scale)
    else:
        mixed = _spelled_out(folded, key, value, attention_mask, scale, softcap, s_aux)
    return mixed.reshape(rows, heads, queries, value.shape[-1]).transpose(1, 2), None


def _spelled_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Computes attention by separate operations, for models with a cap of the scores or a sink for each head  # [N, G,
    H/G * Q, D']

    In float32 for half-precision models: a score of 30 has steps of 0.12 in bfloat16, and weights as coarse.
    """
    dtype = query.dtype
    if dtype in _HALF:
        query = query.float()
        key = key.float()
        value = value.float()
    scores = torch.matmul(query, key.transpose(2, 3)).mul_(scale)  # [N, G, H/G * Q, W]
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    scores = scores.add_(mask)
    if sinks is not None:  # takes its share of the weight and gives nothing
        groups, group_rows = query.shape[1:3]
        column = sinks.view(groups, -1, 1).to(scores.dtype)  # [G, H/G, 1]
        column = column.repeat_interleave(group_rows // column.shape[1], 1)
        scores = torch.cat((scores, column.expand(len(scores), -1, -1, -1)), -1)
    weights = torch.softmax(scores, -1)[..., : key.shape[2]]
    return torch.matmul(weights, value).to(dtype)


def _outside(window: int, queries: int, mask: torch.Tensor) -> torch.Tensor:
    """Returns a mask hiding the columns `window` or more before each query, by very negative numbers  # [Q, W]"""
    distance = torch.ones(queries, mask.shape[-1], device=mask.device).tril(mask.shape[-1] - queries - window)
    return distance.to(mask.dtype) * masked(mask.dtype)


def _chunk_of(module: torch.nn.Module) -> int | None:
    """Returns the length in tokens of this layer's attention chunks; None for a layer without chunks."""
    config = getattr(module, "config", None)
    chunk: int | None = getattr(config, "attention_chunk_size", None)
    if config is None or chunk is None:
        return None
    kinds = getattr(config, "layer_types", None)
    return chunk if kinds and kinds[module.layer_idx] == "chunked_attention" else None


def _before_chunk(chunk: int, mask: torch.Tensor) -> torch.Tensor:
    """Returns the mask with the columns before each query's chunk hidden as well  # [N, 1, Q, W] -> [N, 1, Q, W]"""
    queries, width = mask.shape[2:]
    column = torch.arange(width, device=mask.device)
    query_column = column[width - queries :, None]  # [Q, 1]
    position = (mask == 0).sum(-1, keepdim=True) - 1  # of each query in its text: all visible columns are before it
    return (column < query_column - position % chunk).to(mask.dtype) * masked(mask.dtype)


def masked(dtype: torch.dtype) -> float:
    """Returns the number to add to the score of a hidden column.

    Not minus infinity: a row without any visible column, such as padding, would be NaN and poison its neighbours. And a
    float32 in every dtype: a mask of booleans times this number is a float32, where a larger one would be infinite.
    """
    return max(torch.finfo(dtype).min, torch.finfo(torch.float32).min) / 4
