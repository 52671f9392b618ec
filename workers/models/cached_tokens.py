"""Keys and values cached by a model for a text, computed from the settings in config.json: no model is loaded."""

from __future__ import annotations

import re
from typing import Any, Final

from rftd.workers.devices.device_memory import number_in

_OTHERWISE: Final = re.compile(
    r"kv_lora_rank|num_kv_shared|mamba|ssm|lru|linear_|conv_|state_size|time_step|attn_layer|attn_config|compress|"
    r"multi_query|kv_n_heads|n_head_kv|num_kv_heads|global_head|num_global|block_configs|per_layer"
)
"""Settings of models that cache something else, or less, than every layer's keys and values of every head."""
_WINDOWED: Final = re.compile("sliding|chunked|local")


def kinds_of_layers(settings: dict[str, Any]) -> list[str]:
    """Returns the kind of each layer, by the names in the model's settings; `attention` for all without names."""
    named = settings.get("layer_types") or settings.get("layers_block_type") or settings.get("block_types")
    return named or ["attention"] * number_in(settings, "num_hidden_layers", "n_layer", "num_layers")


def layer_token_bytes(settings: dict[str, Any], element_bytes: int, *, spread: int = 1) -> int:
    """Returns the bytes of one token's keys and values in one attention layer, on each of `spread` devices."""
    heads = number_in(settings, "num_attention_heads", "n_head")
    groups = number_in(settings, "num_key_value_heads") or heads
    width = number_in(settings, "hidden_size", "n_embd", "d_model")
    head_size = number_in(settings, "head_dim") or (width // heads if heads else 0)
    # A group of heads is never divided: with more devices than groups several devices cache the same group.
    return 2 * max(1, groups // spread) * head_size * element_bytes if groups else 0


def least_cache_bytes(settings: dict[str, Any], tokens: int, element_bytes: int, *, spread: int = 1) -> int:
    """Returns the least bytes of a text's keys and values on each of `spread` devices; 0 if settings do not tell."""
    listed = "num_key_value_heads" in settings and not isinstance(settings["num_key_value_heads"], int)
    if listed or any(_OTHERWISE.search(key) for key in settings):
        return 0
    window = number_in(settings, "sliding_window", "attention_chunk_size", "window_size") or tokens
    named = bool(settings.get("layer_types"))
    cached_tokens = 0
    for kind in kinds_of_layers(settings):
        # Whether a window counts in a layer without a kind is up to the model.
        windowed = bool(_WINDOWED.search(kind)) if named else window < tokens
        # The newest token attends to itself without being cached.
        cached_tokens += min(window - 1, tokens) if windowed else tokens
    return cached_tokens * layer_token_bytes(settings, element_bytes, spread=spread)
