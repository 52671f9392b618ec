"""Tiny settings of as many architectures as the installed transformers has, with windows and chunks of a few tokens."""

from __future__ import annotations

from typing import Final

from synthetic.models.tiny_models import ARCHITECTURES, MOVING

_SIZES: Final[dict[str, object]] = {
    **{"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12},
    **{"intermediate_size": 64, "max_position_embeddings": 256, "sliding_window": 9},
    **{"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256},
    **{"d_model": 48, "num_layers": 2, "num_heads": 4, "ffn_dim": 64, "n_heads": 4, "n_layers": 2},
    **{"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4},
    **{"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    **{"shared_expert_intermediate_size": 32, "moe_num_experts": 4, "moe_k": 2},
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12},
    **{"state_size": 8, "expand": 2, "time_step_rank": 4},
}
"""The sizes under every name that a configuration may have for them; each takes those that it knows."""

_LATENT: Final[dict[str, object]] = {
    **{name: size for name, size in _SIZES.items() if name != "head_dim"},
    "num_key_value_heads": 4,
}
"""Attention over latent states counts the sizes of its heads itself."""
_LINEAR: Final[dict[str, object]] = {
    **_SIZES,
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    "layer_types": ["linear_attention", "full_attention"],
}

_ALIKE: Final = """
afmoe arcee biogpt bitnet bloom cohere cohere2 cohere2_moe cwm diffllama doge ernie4_5 exaone4 exaone_moe falcon_mamba
flex_olmo gemma gemma3_text glm glm4 glm4_moe gpt_bigcode gpt_neox_japanese granite granitemoe granitemoeshared helium
hunyuan_v1_dense hunyuan_v1_moe hy_v3 jais2 jetmoe laguna mamba mellum minimax minimax_m2 ministral
ministral3 mixtral modernbert-decoder mpt nanochat nemotron olmo olmo2 olmo3 openai-gpt opt persimmon phi phi3
qwen3_moe seed_oss smollm3 solar_open starcoder2 vaultgemma xglm
"""

FAMILIES: Final[dict[str, dict[str, object]]] = {
    **ARCHITECTURES,
    **{kind: {"model_type": kind, **_SIZES} for kind in _ALIKE.split()},
    **{kind: {"model_type": kind, **_LATENT} for kind in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu")},
    **{kind: {"model_type": kind, **_SIZES, "rotary_dim": 8} for kind in ("codegen", "gptj")},
    **{kind: {"model_type": kind, **_LINEAR} for kind in ("qwen3_next", "qwen3_5_text")},
    **{f"{name}_moving": moving(40) for name, moving in MOVING.items()},
    **{f"{name}_at_rest": moving(80) for name, moving in MOVING.items()},
    "apertus": {"model_type": "apertus", **_SIZES, "max_position_embeddings": 16384},
    "dots1": {"model_type": "dots1", **_SIZES, "n_shared_experts": 1},
    "ernie4_5_moe_biased": {"model_type": "ernie4_5_moe", **_SIZES, "use_bias": True},
    "falcon": {"model_type": "falcon", **_LATENT},
    "falcon_h1": {
        "model_type": "falcon_h1",
        **_SIZES,
        **{"mamba_d_ssm": 48, "mamba_n_heads": 4, "mamba_d_head": 12, "mamba_n_groups": 1, "mamba_d_state": 8},
    },
    "gpt_neo": {"model_type": "gpt_neo", **_SIZES, "attention_types": [[["global", "local"], 1]], "window_size": 9},
    "granite_scaled": {"model_type": "granite", **_SIZES, "logits_scaling": 4.0},
    "jamba": {"model_type": "jamba", **_SIZES, "attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"model_type": "lfm2", **_SIZES, "layer_types": ["conv", "full_attention"]},
    "llama4_tuned": {**ARCHITECTURES["llama4_chunked"], "floor_scale": 40},
    "mamba2": {"model_type": "mamba2", **_LATENT, "num_heads": 8, "head_dim": 12, "n_groups": 1},
    "olmoe": {"model_type": "olmoe", **_SIZES, "sliding_window": None},
    "phimoe_biased": {
        "model_type": "phimoe",
        **_SIZES,
        **{"sliding_window": None, "lm_head_bias": True, "attention_bias": True},
    },
    "phimoe_sliding": {"model_type": "phimoe", **_SIZES},
    "qwen3_sliding": {"model_type": "qwen3", **_SIZES, "use_sliding_window": True, "max_window_layers": 1},
    "recurrent_gemma": {"model_type": "recurrent_gemma", **_SIZES, "num_hidden_layers": 3, "lru_width": 48},
    "stablelm": {"model_type": "stablelm", **_SIZES, "partial_rotary_factor": 0.5},
}
