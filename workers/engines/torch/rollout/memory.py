"""The least memory of generation: the sizes of the model, its cache and its recurrent states."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import torch
from transformers import AutoConfig
from transformers.cache_utils import DynamicCache, LinearAttentionCacheLayerMixin

from rftd.workers.devices.device_memory import Need, check_memory, elements_of, settings_of
from rftd.workers.engines.torch.rollout.cache import SLACK_COLUMNS
from rftd.workers.models.cached_tokens import kinds_of_layers, layer_token_bytes
from rftd.workers.models.pretrained import outlined_model

log = structlog.get_logger(__name__)
"""Log of this module."""

_FIX: Final = (
    "free memory there, or take a smaller explorer.runner_per_model or model.max_model_len, "
    "explorer.rollout_model.dtype bfloat16, or another device"
)
"""Advice for too little memory."""

_COMPACT: Final = frozenset({"kv_lora_rank", "num_kv_shared_layers"})
"""Settings of models with compressed or shared keys, whose cache is not counted."""

_PROBE_TOKENS: Final = 4
"""Tokens of the text by which a recurrent model's sizes are measured."""


def check_generation(folder: Path, *, slots: int, max_len: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raises DeviceMemoryError, with the arithmetic, if the device has too little memory for generation."""
    needs = generation_needs(folder, slots=slots, max_len=max_len, dtype=dtype)
    check_memory(needs, str(device), where=str(folder), fix=_FIX)


def generation_needs(folder: Path, *, slots: int, max_len: int, dtype: torch.dtype) -> list[Need]:
    """Returns the memory needs of generation, with `slots` requests of `max_len` tokens at once."""
    settings = settings_of(folder)
    text_sizes = _recurrent_text_sizes(folder, settings, max_len=max_len, dtype=dtype)
    # The engine's own cache is allocated whole, with spare columns; transformers' cache grows with each text.
    cache_bytes = (
        _cached_token_bytes(settings, dtype) * (max_len + SLACK_COLUMNS)
        if text_sizes is None
        else text_sizes.cache_bytes
    )
    needs = [
        Need("weights", elements_of(folder) * dtype.itemsize),
        Need(f"keys and values of {slots} requests of {max_len} tokens", slots * cache_bytes),
    ]
    if text_sizes is not None:
        needs.append(Need(f"recurrent states of {slots} requests", slots * text_sizes.state_bytes))
    return needs


def _cached_token_bytes(settings: dict[str, Any], dtype: torch.dtype) -> int:
    """Returns the size of one token's keys and values in all attention layers, by the settings of the model."""
    layers = sum("attention" in kind and "linear" not in kind for kind in kinds_of_layers(settings))
    return 0 if _COMPACT & settings.keys() else layers * layer_token_bytes(settings, dtype.itemsize)


class _TextSizes(NamedTuple):
    """Sizes of one text in transformers' own cache."""

    cache_bytes: int
    """Size of keys and values of all tokens."""
    state_bytes: int
    """Size of the states of convolutions and recurrences, independent of the text's length."""


def _recurrent_text_sizes(
    folder: Path, settings: dict[str, Any], *, max_len: int, dtype: torch.dtype
) -> _TextSizes | None:
    """Returns a recurrent model's sizes for one text of `max_len` tokens, by running a short text on torch's meta
    device.

    None for a model without recurrent layers, or one that cannot run there: loading the model reports any fault.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
        attends = all("attention" in kind for kind in kinds_of_layers(settings))
        if attends and not any(map(_is_recurrent, DynamicCache(config=config).layers)):
            return None
        model = outlined_model(folder, dtype=dtype)
        ids = torch.zeros(1, _PROBE_TOKENS, dtype=torch.long, device="meta")
        with torch.inference_mode():
            output = model(input_ids=ids, use_cache=True)
    except Exception as error:  # architectures may raise anything
        log.debug("rollout.states_not_counted", folder=str(folder), error=str(error))
        return None
    cache = output.get("cache_params", output.get("past_key_values"))
    layers = [] if cache is None else cache.layers  # without a cache the whole text is computed again for each token
    return _TextSizes(
        sum(_attended_bytes(layer, max_len) for layer in layers),
        sum(_bytes_of(layer, "conv_states", "recurrent_states") for layer in layers),
    )


def _is_recurrent(layer: object) -> bool:
    """True for a layer of a cache with the state of a recurrence."""
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def _attended_bytes(layer: Any, max_len: int) -> int:
    """Returns the size of a layer's keys and values of `max_len` tokens; a window of w tokens stores w - 1."""
    window = getattr(layer, "sliding_window", None)
    tokens = max_len if window is None else min(max_len, window - 1)
    return _bytes_of(layer, "keys", "values") // _PROBE_TOKENS * tokens


def _bytes_of(layer: object, *names: str) -> int:
    """Returns the total size of the named tensors present in a layer of a cache."""
    attributes = [getattr(layer, name, None) for name in names]
    return sum(attribute.nbytes for attribute in attributes if isinstance(attribute, torch.Tensor))
