"""Sections `explorer` and `model` with all effective values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rftd.daemon.config.effective.arguments import acting_fields, struct_defaults
from rftd.daemon.config.effective.learning import TINKER
from rftd.streams.spec.engines import SERVICE, AuxiliarySpec, EngineNeeds
from rftd.streams.spec.spec import LoraSpec, RolloutSpec, StageSpec
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.generation.auxiliary.service_arguments import ServiceArgs

_SERVICE_ARGUMENTS: Final = ("model_name", "base_url_env", "api_key_env")
"""Arguments of a service engine that stand in section `model.external_model` instead of `extra_engine_args`."""
_COUNTED: Final = ("engine_num", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Fields of an auxiliary model with the number of its engines and of each engine's GPUs, shown if the user set them."""
_SINGLE_DEVICE_ENGINES: Final = ("torch", "fake", TINKER, SERVICE)
"""Rollout engines using at most one device: the only requirement shown for them is the time-out of their start."""
_SAMPLED: Final = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
"""Sampling settings of section `model` with their defaults; a taskset or an auxiliary model may override them."""


def explorer_section(stage: StageSpec, submitted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns section `explorer` with effective values; `submitted` is the user's section, for fields missing in the
    specification.
    """
    spec = stage.rollout
    section: dict[str, Any] = {
        "concurrent_mode": submitted.get("concurrent_mode") or "sequential",
        "runner_per_model": spec.concurrency,
        "max_repeat_times_per_runner": spec.lease_rollouts or None,
        "max_timeout": spec.max_timeout_s,
        "max_retry_times": spec.max_retry_times,
        "env_vars": submitted.get("env_vars") or {},
        "rollout_model": _rollout_model(stage),
        "auxiliary_models": [
            _auxiliary(auxiliary, submitted_model, spec.explorers)
            for auxiliary, submitted_model in zip(
                stage.auxiliary, submitted.get("auxiliary_models") or [], strict=False
            )
        ],
        **_evaluations(stage, submitted),
        "eval_engine": spec.eval_engine,
        "collect_only": stage.kind == "explore" and (stage.taskset is not None),
        "over_rollout": acting_fields(spec.over_rollout),
        "dynamic_timeout": acting_fields(spec.dynamic_timeout),
        "straggler_reissue": acting_fields(spec.straggler_reissue),
    }
    if section["concurrent_mode"] != "sequential":
        # A runner executes all rollouts of one lease, while the specification counts rollouts.
        section["runner_per_model"] //= spec.lease_rollouts or stage.algorithm.repeat_times
    if (
        stage.kind == "both" and stage.synchronizer.sync_style != "fixed"
    ):  # otherwise the schedule determines the number
        section["max_inflight_batches"] = stage.policy.max_inflight_batches
    if stage.serving is not None:
        section["proxy_port"] = stage.serving.port
        section["listen_address"] = stage.serving.address
        section["min_running_model_num"] = submitted.get("min_running_model_num", 1)
    return section


def _evaluations(stage: StageSpec, submitted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of section `explorer` about evaluations, which depend on the mode.

    A stage of kind `explore` has `eval_on_startup` and `bench_on_latest_checkpoint`, but no field if it has a taskset
    or samples from a service; other stages have `eval_interval` and `eval_on_startup`.
    """
    if stage.kind == "explore":  # the mode determines when, and the daemon chooses the weights
        names = {"eval_on_startup": True, "bench_on_latest_checkpoint": False}
        measured = stage.taskset is None and stage.rollout.engine != SERVICE
        return {name: submitted.get(name, default) for name, default in names.items()} if measured else {}
    return {"eval_interval": stage.eval_interval, "eval_on_startup": stage.eval_on_startup}


def _rollout_model(stage: StageSpec) -> dict[str, Any]:
    """Returns the section of the rollout engine."""
    spec = stage.rollout
    section: dict[str, Any] = {"engine_type": spec.engine, "engine_num": spec.explorers, "dtype": spec.dtype}
    arguments = dict(spec.engine_args)
    if spec.engine == TINKER:
        arguments = {}  # set in model.tinker
    elif spec.engine == SERVICE:
        arguments = {name: setting for name, setting in arguments.items() if name not in _SERVICE_ARGUMENTS}
    else:
        arguments = struct_defaults(rollout_engines.arguments_of(spec.engine), arguments)
    section["extra_engine_args"] = _with_threads(arguments, spec.threads)
    section |= _needs(spec.needs, alone=spec.engine in _SINGLE_DEVICE_ENGINES)
    for name in ("chat_template", "enable_thinking"):
        if (setting := getattr(stage.model, name)) is not None:
            section[name] = setting
    section["enable_auto_tool_choice"] = stage.model.auto_tool_choice
    section["tool_call_parser"] = stage.model.tool_call_parser or None
    section["reasoning_parser"] = stage.model.reasoning_parser or None
    return section


def _with_threads(arguments: dict[str, Any], threads: int) -> dict[str, Any]:
    """Returns arguments with the number of threads, if set."""
    # 0 means all available threads and cannot be written.
    return {**arguments, "threads": threads} if threads else arguments


def _needs(spec: EngineNeeds, *, alone: bool) -> dict[str, Any]:
    """Returns the engine's requirements by field: the time-out of its start, its parallelism, memory and batching; only
    the time-out for an engine `alone`, on one device at most.
    """
    needs: dict[str, Any] = {"start_timeout": spec.start_timeout_s or None}
    if alone:
        return needs
    return {
        "tensor_parallel_size": spec.tensor_parallel_size,
        "pipeline_parallel_size": spec.pipeline_parallel_size,
        "data_parallel_size": spec.data_parallel_size,
        "enable_expert_parallel": spec.enable_expert_parallel,
        "gpu_memory_utilization": spec.gpu_memory_utilization,
        "enforce_eager": spec.enforce_eager,
        "enable_prefix_caching": spec.enable_prefix_caching,
        "enable_chunked_prefill": spec.enable_chunked_prefill,
        "max_num_seqs": spec.max_num_seqs or None,
        "max_num_batched_tokens": spec.max_num_batched_tokens or None,
        **needs,
    }


def _auxiliary(spec: AuxiliarySpec, submitted: Mapping[str, Any], explorers: int) -> dict[str, Any]:
    """Returns one entry of `explorer.auxiliary_models`; `submitted` is the entry as written by the user.

    The number of engines is that of all `explorers` together; a model at a service has its address and the name of its
    key's variable instead.
    """
    section: dict[str, Any] = {
        "name": spec.name,
        "engine_type": spec.engine,
        "max_model_len": spec.max_model_len,
        "max_prompt_tokens": spec.max_prompt_tokens,
        "max_response_tokens": spec.max_response_tokens,
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "top_k": spec.top_k,
        "max_num_seqs": spec.concurrency,
        **{name: submitted[name] for name in _COUNTED if name in submitted},
    }
    if spec.served:
        section["model_name"] = spec.model_name
        section["base_url"] = {"env": spec.base_url_env} if spec.base_url_env else spec.base_url
        section["api_key"] = {"env": spec.api_key_env} if spec.api_key_env else "EMPTY"
        section["extra_engine_args"] = struct_defaults(ServiceArgs, spec.engine_args)
        return section
    arguments = struct_defaults(rollout_engines.arguments_of(spec.engine), spec.engine_args)
    section["engine_num"] = spec.engines * explorers
    section |= {"model_path": spec.path, "dtype": spec.dtype, "chat_template": spec.chat_template}
    section["enable_thinking"] = spec.enable_thinking
    section["extra_engine_args"] = _with_threads(arguments, spec.threads)
    for name in ("gpu_memory_utilization", "enforce_eager"):
        # Other engines ignore the fields, and warn if one is written.
        if spec.engine == "vllm" or name in submitted:
            section[name] = getattr(spec.needs, name)
    return section


def model_section(stage: StageSpec, submitted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns section `model` with effective lengths, adapter, and the parts `tinker` and `external_model`.

    `submitted` is the section as written by the user, for sampling settings and the chat template.
    """
    spec = stage.model
    section: dict[str, Any] = {
        "model_path": spec.path,
        "critic_model_path": stage.trainer.critic_path,
        "trust_remote_code": spec.trust_remote_code,
        "custom_chat_template": submitted.get("custom_chat_template"),
        "enable_thinking": submitted.get("enable_thinking"),
        **{name: submitted.get(name, default) for name, default in _SAMPLED.items()},
        "max_model_len": spec.max_model_len,
        "max_prompt_tokens": spec.max_prompt_tokens,
        "max_response_tokens": spec.max_response_tokens,
        "min_response_tokens": spec.min_response_tokens,
        "enable_prompt_truncation": spec.enable_prompt_truncation,
    }
    if spec.lora is not None:
        section["lora_configs"] = [_adapter(spec.lora)]
    section["tinker"] = _tinker(stage)
    section["external_model"] = _service(stage.rollout)
    return section


def _adapter(spec: LoraSpec) -> dict[str, Any]:
    """Returns the entry of `model.lora_configs` for an adapter; an empty path or list of exclusions becomes None."""
    return {
        "name": spec.name,
        "path": spec.path or None,
        "lora_rank": spec.rank,
        "lora_alpha": int(spec.alpha),
        "target_modules": list(spec.target_modules),
        "exclude_modules": list(spec.exclude_modules) or None,
    }


def _tinker(stage: StageSpec) -> dict[str, Any]:
    """Returns section `model.tinker` with the settings of that engine; only `enable: false` for another trainer."""
    if stage.trainer.engine != TINKER:
        return {"enable": False}
    names = ("base_model", "rank", "seed", "train_mlp", "train_attn", "train_unembed", "base_url")
    return {"enable": True, **{name: argument for name, argument in stage.trainer.engine_args.items() if name in names}}


def _service(spec: RolloutSpec) -> dict[str, Any]:
    """Returns section `model.external_model` with the service's arguments; only `enable: false` without a service."""
    if spec.engine != SERVICE:
        return {"enable": False}
    return {"enable": True, **{name: spec.engine_args.get(name) for name in _SERVICE_ARGUMENTS}}
