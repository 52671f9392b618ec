"""A leaner forward for the common family of models: the same arithmetic in a third of the operations.

A small model spends most of a decode step between operations. Llama, Mistral, Qwen2 and Qwen3 share one layer, so here
its projections run as one, its rotation is a lookup, and no module is called. The parameters stay the model's own: each
projection becomes a view into the fused matrix, so new weights are copied in as usual. Other models run through their
own forward; the trial at opening checks both ways alike.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn import functional
from transformers.cache_utils import Cache

from rftd.workers.engines.torch.rollout.attention import attend

_FAMILY: Final = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Classes of models with the common layer."""
_ROTATIONS: Final = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotations with angles independent of the sequence's length."""


def fuse(model: Any, *, max_len: int) -> FusedForward | None:
    """Returns the lean forward of `model`, turning its projections into views of fused ones; None for other
    architectures.
    """
    if type(model).__name__ not in _FAMILY or model.model.rotary_emb.rope_type not in _ROTATIONS:
        return None
    return FusedForward(model, max_len)


class FusedForward:
    """Runs the layers of a model of the family over the engine's caches."""

    def __init__(self, model: Any, max_len: int) -> None:
        """Fuses the projections of each layer, and computes the table of rotations for `max_len` positions."""
        inner = model.model
        self._embed = inner.embed_tokens
        self._layers = [_Layer(layer) for layer in inner.layers]
        self._norm = _Norm(inner.norm)
        self._head = model.lm_head
        weight = self._embed.weight
        positions = torch.arange(max_len, device=weight.device).unsqueeze(0)
        cos, sin = inner.rotary_emb(weight, positions)  # [1, L, D]
        half = cos.shape[-1] // 2
        # With the sign of rotate_half in the table, rotating is: x * cos + roll(x) * sin.
        self._cos = cos[0].contiguous()
        self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)

    @property
    def window(self) -> int | None:
        """Length in tokens of the shortest attention window; None: all layers see every token."""
        return min((layer.window for layer in self._layers if layer.window is not None), default=None)

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Returns the logits after the last token of each row  # [N, Q], [N, Q], [N, 1, Q, W] -> [N, V]"""
        rows, queries = ids.shape
        flat = positions.reshape(-1)
        cos = self._cos[flat].unsqueeze(1)  # [N * Q, 1, D]
        sin = self._sin[flat].unsqueeze(1)
        x = functional.embedding(ids.reshape(-1), self._embed.weight)  # [N * Q, E]
        for index, layer in enumerate(self._layers):
            x = layer(x, rows, queries, cos, sin, mask, cache, index)
        if queries > 1:
            x = x.view(rows, queries, -1)[:, -1]
        return functional.linear(self._norm(x), self._head.weight, self._head.bias)


class _Layer:
    """One decoder layer: attention and feed-forward network, each added to its input."""

    def __init__(self, layer: Any) -> None:
        """Fuses the projections of queries, keys and values, and those of the feed-forward network."""
        self._attention = attention = layer.self_attn
        self._mlp = mlp = layer.mlp
        self._size: int = attention.head_dim
        sizes = [p.weight.shape[0] for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
        self._heads, self._groups, _ = (size // self._size for size in sizes)
        self._qkv = _fuse_projections(attention.q_proj, attention.k_proj, attention.v_proj)
        self._gate_up = _fuse_projections(mlp.gate_proj, mlp.up_proj)
        self._width: int = mlp.gate_proj.weight.shape[0]
        self._before, self._between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self._q_norm = _Norm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self._k_norm = _Norm(attention.k_norm) if hasattr(attention, "k_norm") else None
        self.window: int | None = getattr(attention, "sliding_window", None)
        # Mistral's attention has no such attribute: it reads its configuration at each call.
        if self.window is None and type(attention).__name__ == "MistralAttention":
            self.window = attention.config.sliding_window

    def __call__(
        self,
        x: torch.Tensor,
        rows: int,
        queries: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor,
        cache: Cache,
        index: int,
    ) -> torch.Tensor:
        heads = self._heads
        groups = self._groups
        size = self._size
        weight, bias = self._qkv
        mixed = functional.linear(self._before(x), weight, bias).view(
            -1, heads + 2 * groups, size
        )  # [N * Q, H + 2G, D]
        turning = mixed[:, : heads + groups]
        if self._q_norm is not None and self._k_norm is not None:
            turning = torch.cat((self._q_norm(mixed[:, :heads]), self._k_norm(mixed[:, heads : heads + groups])), 1)
        turned = torch.addcmul(turning * cos, turning.roll(size // 2, -1), sin)
        query = turned[:, :heads]
        key = turned[:, heads:]
        value = mixed[:, heads + groups :]
        keys, values = cache.update(_by_head(key, rows, queries, groups), _by_head(value, rows, queries, groups), index)
        gathered, _ = attend(
            self._attention,
            _by_head(query, rows, queries, heads),
            keys,
            values,
            mask,
            scaling=self._attention.scaling,
            sliding_window=self.window,
        )
        output = self._attention.o_proj
        x = x + functional.linear(gathered.reshape(rows * queries, heads * size), output.weight, output.bias)
        return x + self._feed_forward(self._between(x))

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the output of the feed-forward network."""
        weight, bias = self._gate_up
        both = functional.linear(x, weight, bias)
        down = self._mlp.down_proj
        return functional.linear(
            self._mlp.act_fn(both[:, : self._width]) * both[:, self._width :], down.weight, down.bias
        )


class _Norm:
    """Root-mean-square norm over the last dimension."""

    def __init__(self, module: Any) -> None:
        """Wraps a norm of transformers, whose weight stays the module's."""
        self._module = module
        self._weight: torch.Tensor = module.weight
        self._epsilon: float = module.variance_epsilon
        size = self._weight.shape[0]
        self._mean = torch.full((size, 1), 1.0 / size, device=self._weight.device)
        # Only in float32: in half precision the module computes the mean in float32 and rounds once, unlike a product.
        self._lean = self._weight.dtype == torch.float32

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self._lean:
            normed: torch.Tensor = self._module(x)
            return normed
        # The mean as a product: a reduction over so few numbers costs several times more.
        scale = torch.matmul(x * x, self._mean).add_(self._epsilon).rsqrt_()
        return (x * scale).mul_(self._weight)


def _by_head(states: torch.Tensor, rows: int, queries: int, heads: int) -> torch.Tensor:
    """Returns states by head  # [N * Q, H, D] -> [N, H, Q, D]"""
    if queries == 1:
        return states.unsqueeze(2)
    return states.reshape(rows, queries, heads, -1).transpose(1, 2)


def _fuse_projections(*projections: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Joins projections into one matrix and one bias; their own parameters become views."""
    weight = _join_parameters([p.weight for p in projections])
    if projections[0].bias is None:
        return weight, None
    return weight, _join_parameters([p.bias for p in projections])


def _join_parameters(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    """Concatenates parameters into one matrix, of which they become views."""
    # Views, not copies: new weights are copied into the parameters, and must reach this matrix.
    joined = torch.cat([p.detach() for p in parameters])
    for parameter, view in zip(parameters, torch.split(joined, [p.shape[0] for p in parameters]), strict=True):
        parameter.data = view
    return joined
