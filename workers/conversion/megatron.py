"""Megatron's names and fused tensors, translated to transformers': decoders of the kind of Llama and Qwen.

Megatron stacks equal layers along a first dimension, stores queries, keys and values of a group of heads together, and
gate and up projection in one tensor. All of these are boxes of stored tensors, so nothing is computed or copied for the
translation. Names: megatron.core's GPT model, as saved by the model's `dist_checkpointing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from rftd.ops.errors import DataError
from rftd.workers.conversion.whole_tensor import Box, WholeTensor
from rftd.workers.weights.tensor_bytes import TensorLayout


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The shapes of a model's tensors, as far as config.json tells them; None for a missing setting."""

    hidden_size: int | None = None
    intermediate_size: int | None = None
    vocab_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool | None = None


_TOP: Final = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "decoder.final_layernorm.bias": "model.norm.bias",
    "output_layer.weight": "lm_head.weight",
}
"""Transformers name of each tensor outside the layers, by Megatron's name."""
_WORDS: Final = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Tensors with rows for the vocabulary, possibly padded."""
_LAYER: Final = re.compile(r"decoder\.layers\.(?:([0-9]{1,6})\.)?(.+)")
"""Name of a layer's tensor: index of the layer, and name within it."""
_IN_LAYER: Final = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.linear_proj.bias": "self_attn.o_proj.bias",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "mlp.linear_fc2.bias": "mlp.down_proj.bias",
}
"""Transformers name of each tensor within a layer, by Megatron's name."""
_QKV: Final = ("self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias")
"""Tensors with queries, keys and values interleaved by group."""
_GATE_UP: Final = ("mlp.linear_fc1.weight", "mlp.linear_fc1.bias")
"""Tensors with gate and up projection, one after the other."""


Fusing: TypeAlias = Literal["one", "heads", "gate_up"]
"""Content of a Megatron tensor: one of transformers' tensors, the projections of all heads, or gate and up projection.
"""


class DecoderNames(msgspec.Struct, frozen=True):
    """transformers' names for the content of one Megatron tensor, and how the tensor is fused."""

    kind: Fusing
    names: tuple[str, ...]


def decoder_names(name: str) -> DecoderNames | None:
    """Returns transformers' names for a tensor of a decoder with unstacked layers; None for an unknown one."""
    if name in _TOP:
        return DecoderNames("one", (_TOP[name],))
    match = _LAYER.fullmatch(name)
    if match is None or match[1] is None:
        return None
    prefix = f"model.layers.{match[1]}."
    inner = match[2]
    kind = inner.rpartition(".")[2]
    if inner in _IN_LAYER:
        return DecoderNames("one", (prefix + _IN_LAYER[inner],))
    if inner in _QKV:
        return DecoderNames("heads", tuple(f"{prefix}self_attn.{letter}_proj.{kind}" for letter in "qkv"))
    if inner in _GATE_UP:
        return DecoderNames("gate_up", tuple(f"{prefix}mlp.{projection}_proj.{kind}" for projection in ("gate", "up")))
    return None


def is_megatron(tensors: Sequence[WholeTensor]) -> bool:
    """True if the tensors have Megatron's names."""
    return any(tensor.name.startswith(("decoder.layers.", "embedding.word_embeddings.")) for tensor in tensors)


def renamed(tensors: Sequence[WholeTensor], config: DecoderConfig) -> list[WholeTensor]:
    """Returns the tensors with transformers' names and cuts. Raises DataError for an unknown one, naming a file."""
    translated: list[WholeTensor] = []
    for tensor in tensors:
        if "_extra_state" in tensor.name or (tensor.name == "output_layer.weight" and config.tie_word_embeddings):
            continue
        translated.extend(_top(tensor, config) if tensor.name in _TOP else _of_layers(tensor, config))
    return translated


def _top(tensor: WholeTensor, config: DecoderConfig) -> Iterator[WholeTensor]:
    """Yields a tensor outside the layers, without the padding of the vocabulary."""
    shape = tensor.layout.shape
    # Megatron pads the vocabulary, for a division into equal parts.
    if tensor.name in _WORDS and config.vocab_size is not None and shape[0] > config.vocab_size:
        shape = (config.vocab_size, *shape[1:])
    yield _cut(tensor, _TOP[tensor.name], shape, [((0,) * len(shape), shape)])


def _of_layers(tensor: WholeTensor, config: DecoderConfig) -> Iterator[WholeTensor]:
    """Yields the tensors of one layer, or of each layer in a stack. Raises DataError for an unknown name."""
    match = _LAYER.fullmatch(tensor.name)
    if match is None:
        raise _unknown(tensor)
    number, inner = match.groups()
    if number is not None:
        yield from _of_layer(tensor, int(number), inner, (), tensor.layout.shape, config)
        return
    for layer in range(tensor.layout.shape[0]):
        yield from _of_layer(tensor, layer, inner, (layer,), tensor.layout.shape[1:], config)


def _of_layer(
    tensor: WholeTensor, layer: int, inner: str, at: tuple[int, ...], shape: tuple[int, ...], config: DecoderConfig
) -> Iterator[WholeTensor]:
    """Yields the tensors of one layer; `at` is the index in a stack of layers, `shape` a layer's tensor shape."""
    prefix = f"model.layers.{layer}."
    kind = inner.rpartition(".")[2]
    if inner in _IN_LAYER:
        yield _rows(tensor, prefix + _IN_LAYER[inner], at, shape, [(0, shape[0])])
    elif inner in _QKV:
        for name, rows in _heads(tensor, shape[0], config):
            yield _rows(tensor, f"{prefix}self_attn.{name}_proj.{kind}", at, shape, rows)
    elif inner in _GATE_UP and shape[0] == 2 * (config.intermediate_size or shape[0] // 2):
        half = shape[0] // 2
        yield _rows(tensor, f"{prefix}mlp.gate_proj.{kind}", at, shape, [(0, half)])
        yield _rows(tensor, f"{prefix}mlp.up_proj.{kind}", at, shape, [(half, 2 * half)])
    else:
        raise _unknown(tensor)


def _heads(tensor: WholeTensor, rows: int, config: DecoderConfig) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yields the rows of queries, keys and values: a group of heads has queries first, then keys, then values."""
    heads = config.num_attention_heads or 0
    groups = config.num_key_value_heads or heads
    head_rows = config.head_dim or (config.hidden_size or 0) // max(1, heads)
    if not heads or heads % groups or rows != (heads + 2 * groups) * head_rows:
        raise DataError(
            f"{tensor.name!r} has {rows} rows, which are not those of {heads} heads in {groups} groups of {head_rows} "
            f"rows a head, as config.json has them",
            where=str(tensor.files()[0]),
            fix="give the folder of the model that was trained as --base-model-dir",
        )
    queries = heads // groups * head_rows
    group = queries + 2 * head_rows
    for name, begin, extent in (("q", 0, queries), ("k", queries, head_rows), ("v", queries + head_rows, head_rows)):
        yield name, [(number * group + begin, number * group + begin + extent) for number in range(groups)]


def _rows(
    tensor: WholeTensor, name: str, at: tuple[int, ...], shape: tuple[int, ...], rows: Sequence[tuple[int, int]]
) -> WholeTensor:
    """Returns a tensor of these rows of a layer's tensor, in order."""
    trailing = shape[1:]
    boxes = [((*at, begin, *(0 for _ in trailing)), (*(1 for _ in at), end - begin, *trailing)) for begin, end in rows]
    return _cut(tensor, name, (sum(end - begin for begin, end in rows), *trailing), boxes)


def _cut(tensor: WholeTensor, name: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> WholeTensor:
    """Returns a tensor of a new name and shape, made of boxes of a stored one."""
    return WholeTensor(name, TensorLayout(tensor.layout.dtype, shape), tensor.parts, tuple(boxes))


def _unknown(tensor: WholeTensor) -> DataError:
    return DataError(
        f"{tensor.name!r} is not a tensor of a supported decoder (Llama, Mistral, Qwen2, Qwen3; no experts)",
        where=str(tensor.files()[0]),
        fix="convert it with the tools of Megatron",
    )
