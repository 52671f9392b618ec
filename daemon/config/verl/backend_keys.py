"""Keys of veRL's engines other than FSDP (Megatron, VeOmni, torchtitan, Automodel) and of their optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rftd.daemon.config.verl.key import VerlKey, dropped, person, rule
from rftd.daemon.config.verl.key_groups import SPEED, switched

_ACTOR: Final = "actor_rollout_ref.actor"
_REF: Final = "actor_rollout_ref.ref"
_MEGATRON: Final[Mapping[str, Any]] = {
    **{"expert_model_parallel_size": 1, "expert_tensor_parallel_size": None, "pipeline_model_parallel_size": 1},
    **{"virtual_pipeline_model_parallel_size": None, "context_parallel_size": 1, "dynamic_context_parallel": False},
    **{"max_seqlen_per_dp_cp_rank": None, "param_offload": False, "grad_offload": False, "optimizer_offload": False},
    **{"use_distributed_optimizer": True, "use_dist_checkpointing": False, "dist_checkpointing_path": None},
    **{"dist_checkpointing_prefix": "", "dist_ckpt_optim_fully_reshardable": False},
    **{"distrib_optim_fully_reshardable_mem_efficient": False, "entropy_from_logits_with_chunking": False},
    **{"entropy_from_logits_chunk_size": 2048, "seed": 42, "use_mbridge": True, "vanilla_mbridge": None},
    **{"use_remove_padding": True, "pad_bshd_to_minibatch_max": True, "pad_to_length": False},
    **{"pad_to_length_bucket": 512, "use_megatron_fsdp": False, "forward_only": False, "dtype": "bfloat16"},
}
"""Keys without effect below `megatron` in veRL 0.3 to 0.9, with their defaults."""
_VEOMNI: Final = (
    *("param_offload", "optimizer_offload", "fsdp_size", "ulysses_parallel_size", "expert_parallel_size", "seed"),
    *("mixed_precision", "full_determinism", "init_device", "enable_full_shard", "ckpt_manager", "forward_prefetch"),
    *("load_checkpoint_path", "strategy", "use_torch_compile", "entropy_from_logits_with_chunking", "forward_only"),
    *("entropy_from_logits_chunk_size", "entropy_checkpointing", "enable_fsdp_offload", "enable_reentrant"),
    *("force_use_huggingface", "activation_gpu_limit", "basic_modules", "pad_to_length", "pad_to_length_bucket"),
    *("attn_implementation", "moe_implementation", "cross_entropy_loss_implementation", "rms_norm_implementation"),
    *("swiglu_mlp_implementation", "rotary_pos_emb_implementation", "rms_norm_gated_implementation"),
    *("causal_conv1d_implementation", "chunk_gated_delta_rule_implementation", "load_balancing_loss_implementation"),
    *("dsa_indexer_implementation", "dsa_attention_implementation", "mhc_implementation", "router_replay.*"),
    *("enable_async_activation_offload", "activation_offload_modules", "activation_offload_host_cache_limit_gb"),
    "qat_implementation",
)
_TORCHTITAN: Final = (
    *("param_offload", "optimizer_offload", "wrap_policy.*", "reshard_after_forward", "forward_prefetch", "dtype"),
    *("use_orig_params", "mixed_precision", "use_torch_compile", "entropy_from_logits_with_chunking", "strategy"),
    *("entropy_from_logits_chunk_size", "entropy_checkpointing", "data_parallel_size", "data_parallel_replicate_size"),
    *("data_parallel_shard_size", "tensor_parallel_size", "expert_parallel_size", "pipeline_parallel_size", "seed"),
    *("context_parallel_size", "attn_type", "spmd_backend", "activation_checkpoint", "max_seq_len", "forward_only"),
    "full_determinism",
)
_AUTOMODEL: Final = (
    *("strategy", "distributed_strategy", "tp_size", "pp_size", "cp_size", "ep_size", "dp_replicate_size", "seed"),
    *("sequence_parallel", "defer_fsdp_grad_sync", "param_offload", "optimizer_offload", "activation_checkpointing"),
    *("enable_fp8", "enable_compile", "model_dtype", "attn_implementation", "backend_config.*", "moe_config.*"),
    *("mp_param_dtype", "mp_reduce_dtype", "mp_output_dtype", "full_determinism", "forward_only"),
    *("use_torch_compile", "entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size"),
    "entropy_checkpointing",
)
_OTHER_ENGINES: Final[Mapping[str, tuple[str, ...]]] = {
    **{"veomni": _VEOMNI, "torchtitan": _TORCHTITAN, "automodel": _AUTOMODEL},
    "engine": ("*",),
}
"""Sections, and the keys that each has; `engine` is that of a recipe's own engine, whose keys are not listed."""
_FSDP2: Final = "the model is trained with FSDP2: this changes speed or memory alone"
_OPTIMIZERS: Final[Mapping[str, Any]] = {
    **{"lr_wsd_decay_style": "exponential", "lr_wsd_decay_steps": None, "weight_decay_incr_style": "constant"},
    **{"wd_incr_style": "constant", "init_lr_ratio": None, "lr_start": 0.0, "lr_decay_ratio": 1.0, "eps": 1e-8},
    **{"exp_avg_dtype": None, "exp_avg_sq_dtype": None, "main_grads_dtype": None, "master_weights": False},
    **{"master_weight_dtype": None, "store_param_remainders": False},
}
"""Keys of optimizers that change what is learned, and the value at which they ask for what is done here."""
_MUON: Final = (
    *("momentum", "nesterov", "split_qkv", "scale_mode", "coefficient_type", "num_ns_steps", "tp_mode"),
    *("fp32_matmul_prec", "extra_scale_factor", "scalar_optimizer", "match_adamw_update_rms"),
)


def _megatron(section: str) -> Iterator[VerlKey]:
    for name, default in _MEGATRON.items():
        yield dropped(f"{section}.megatron.{name}", SPEED, "any", default)
    for name in ("override_transformer_config", "override_ddp_config", "router_replay"):
        yield dropped(f"{section}.megatron.{name}.*", SPEED)
    yield dropped(f"{section}.megatron.num_layers_per_virtual_pipeline_stage", SPEED, "count")
    if section != _ACTOR:
        for name in ("tensor_model_parallel_size", "sequence_parallel"):
            yield dropped(f"{section}.megatron.{name}", "it is held as the policy is")
    yield person(f"{section}.megatron.override_mcore_model_config.*", "change config.json of the model's folder")
    yield from switched(f"{section}.megatron.qat", "training for low precision is not here")


def _optimizer(section: str) -> Iterator[VerlKey]:
    for name, default in _OPTIMIZERS.items():
        yield person(f"{section}.{name}", "write algorithm.optimizer", "any", default)
    yield person(f"{section}.lr_decay_style", "the critic's rate is lr_scheduler_type", "text", "constant")
    yield person(f"{section}.decay_type", "the critic's rate is lr_scheduler_type", "text")
    yield person(f"{section}.name", "the critic's optimizer is AdamW", "text", "AdamW")
    for name in ("min_lr", "lr_min", "min_lr_factor"):
        yield person(f"{section}.{name}", "write min_lr_ratio", "number", 0.0)
    yield dropped(f"{section}.lr_decay_steps", "follows the length of the stage", "any")
    yield dropped(f"{section}.use_checkpoint_opt_param_scheduler", "a checkpoint has the optimizer's state", "bool")
    yield dropped(f"{section}.use_precision_aware_optimizer", SPEED, "bool", False)
    yield dropped(f"{section}.use_layer_wise_distributed_optimizer", SPEED, "bool", False)
    for name in _MUON:
        yield dropped(f"{section}.muon_{name}", "the optimizer is not Muon")


def _rows() -> Iterator[VerlKey]:
    for section in (_ACTOR, _REF, "critic"):
        yield from _megatron(section)
        if section != _REF:
            yield from _optimizer(f"{section}.optim")
        for engine, names in _OTHER_ENGINES.items():
            for name in names:
                yield dropped(f"{section}.{engine}.{name}", _FSDP2)
    yield dropped(f"{_REF}.optim.*", "a reference is not trained")
    yield rule("model_engine", "text", "dp", "trainer.trainer_strategy", "VeOmni, torchtitan, ...: fsdp2")
    yield dropped(f"{_ACTOR}.model_engine", "veRL reads model_engine", "text")


BACKENDS: Final[tuple[VerlKey, ...]] = tuple(_rows())
