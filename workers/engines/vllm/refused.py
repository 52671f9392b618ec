"""`not_given`: vLLM's arguments unavailable in a file, each with the reason; importable without vLLM."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from rftd.ops.plugins import Declaration
from rftd.workers.engines.vllm.tables import ASYNC_ENGINE_ARGS, TABLES

_MODEL: Final = "explorer.rollout_model"
"""Field of the rollout model's section."""
NEEDS: Final = (
    "tensor_parallel_size",
    "enable_expert_parallel",
    "gpu_memory_utilization",
    "enforce_eager",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "max_num_batched_tokens",
)
"""Arguments with the same name in a specification and in vLLM."""
_ELSEWHERE: Final = {
    "model": "model.model_path",
    "max_model_len": "model.max_model_len",
    "trust_remote_code": "model.trust_remote_code",
    "dtype": f"{_MODEL}.dtype",
    "max_num_seqs": f"{_MODEL}.max_num_seqs",
    "reasoning_parser": f"{_MODEL}.reasoning_parser",
    "kv_cache_memory_bytes": f"{_MODEL}.extra_engine_args.kv_cache_memory_bytes",
    **{name: f"{_MODEL}.{name}" for name in NEEDS},
}
"""vLLM's arguments set by other fields of the experiment file."""
_ONE_SET = "one engine is one set of weights; raise explorer.rollout_model.engine_num"
"""Reason for arguments of several sets of weights."""
_ONE_PLACE = "the launcher gives an explorer its machine and its devices, and ends its processes with it"
"""Reason for arguments of machines and devices."""
_PROMISES: Final[dict[str, tuple[str, ...]]] = {
    "log-probabilities would differ from those of the distribution behind the tokens": (
        *("speculative_config", "spec_method", "spec_model", "spec_tokens", "diffusion_config", "watermark_config"),
        *("logits_processors", "logprobs_mode", "max_logprobs"),
    ),
    "rftd's own sampler draws tokens, with random numbers derived from each request's seed": (
        *("seed", "use_fp64_gumbel", "enable_batch_sharded_sampling", "enable_trace_replay", "return_sampling_mask"),
    ),
    "each request has its own settings": ("generation_config", "override_generation_config"),
    "new weights come whole, in full precision, under the names of the model's folder": (
        *("quantization", "quantization_config", "allow_deprecated_quantization", "load_format", "model_weights"),
        *("model_loader_extra_config", "ignore_patterns", "pt_load_map_location", "weight_transfer_config"),
        *("hf_config_path", "enable_eplb", "eplb_config"),
    ),
    "adapters come as weights: write model.lora_configs": (
        *("enable_lora", "max_loras", "max_lora_rank", "default_mm_loras", "fully_sharded_loras", "max_cpu_loras"),
        *("lora_dtype", "lora_target_modules", "enable_tower_connector_lora", "specialize_active_lora"),
        *("enable_mixed_moe_lora_format", "enable_moe_shared_loras", "max_lora_cls_labels"),
    ),
    "stop texts are found with the tokenizer of the model's folder": (
        *("skip_tokenizer_init", "tokenizer", "tokenizer_mode", "tokens_only"),
    ),
    "the model and its tokenizer are in a local folder, and nothing is downloaded": (
        *("revision", "code_revision", "tokenizer_revision", "download_dir", "hf_token"),
    ),
    "nothing leaves the machine": (
        *("otlp_traces_endpoint", "collect_detailed_traces", "kv_transfer_config", "kv_events_config"),
        *("ec_transfer_config", "kv_offloading_backend", "allowed_media_domains"),
    ),
    "running requests and drawn tokens are counted by rftd": ("disable_log_stats",),
    "the engine generates text": ("runner", "convert", "pooler_config"),
    "the worker is extended to take new weights": ("worker_cls", "worker_extension_cls"),
    "no trainer replays the choice of experts": ("enable_return_routed_experts", "aux_output_config"),
    "only the endpoint separates thoughts: write explorer.rollout_model.reasoning_parser": ("reasoning_parser_plugin",),
    "an engine that fails ends its explorer, which restarts": (*("enable_fault_tolerance", "fault_tolerance_config"),),
    "its stages would change weights at different tokens": ("pipeline_parallel_size",),
    _ONE_SET: (
        *("data_parallel_size", "data_parallel_rank", "data_parallel_start_rank", "data_parallel_size_local"),
        *("data_parallel_address", "data_parallel_rpc_port", "data_parallel_hybrid_lb", "data_parallel_external_lb"),
        *("data_parallel_multi_port_external_lb", "data_parallel_backend", "enable_elastic_ep"),
        *("elastic_ep_max_dp_size",),
    ),
    _ONE_PLACE: (*("distributed_executor_backend", "nnodes", "node_rank", "master_addr", "master_port", "device_ids"),),
}
"""vLLM's arguments that would break a promise of the engine, by the promise."""
REFUSED: Final = {name: promise for promise, names in _PROMISES.items() for name in names}
"""Promise that an argument would break, by argument."""
_TYPES: Final = Declaration(
    kind=msgspec.defstruct(
        "AsyncEngineArguments",
        [(name, kind | msgspec.UnsetType, msgspec.UNSET) for name, kind in ASYNC_ENGINE_ARGS.items()],
    ),
    required=(),
)
"""vLLM's arguments with their types, for checks and corrections of spelling."""


def not_given(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields (name, reason, fix) of each unavailable argument of vLLM."""
    for name in arguments:
        if name in _ELSEWHERE:
            yield name, "has its own field", f"write {_ELSEWHERE[name]}"
        elif name in REFUSED:
            yield name, f"cannot be set: {REFUSED[name]}", "leave it out"
        elif name not in ASYNC_ENGINE_ARGS:
            near = difflib.get_close_matches(str(name), ASYNC_ENGINE_ARGS, 1)
            yield name, f"is not an argument of vLLM {TABLES.version}", _spelling(near[0]) if near else "leave it out"
    possible = {name: setting for name, setting in arguments.items() if name not in _ELSEWHERE and name not in REFUSED}
    for name, fault in _TYPES.wrong(possible):
        yield name, fault, "correct it, or leave it out"


def misplaced(arguments: Mapping[str, Any], ours: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Yields (name, reason, fix) of each vLLM argument written next to rftd's own arguments (`ours`) instead of below
    `vllm`.
    """
    for name in arguments:
        if name in ours or name not in ASYNC_ENGINE_ARGS:
            continue
        if name in _ELSEWHERE or name in REFUSED:
            yield from not_given({name: None})
        else:
            yield name, "is an argument of vLLM's own", f"write it below vllm: {{vllm: {{{name}: ...}}}}"


def _spelling(near: str) -> str:
    """Returns the suggestion of a known argument's name, with the field to write instead if there is one."""
    if near in _ELSEWHERE:
        return f"did you mean {near!r}? write {_ELSEWHERE[near]}"
    return f"did you mean {near!r}?" if near not in REFUSED else f"did you mean {near!r}? that cannot be set either"
