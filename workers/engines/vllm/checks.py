"""Checks of a model before vLLM is started: vLLM itself reports an unsupported model only as a failed start."""

from __future__ import annotations

import difflib
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from rftd.ops.errors import ConfigError, DataError
from rftd.workers.devices.device_memory import EngineMemory, Need, elements_of, number_in, settings_of, shown, terms_of
from rftd.workers.devices.engine_build import CPU_BUILD, CUDA_BUILD, EngineBuild, vllm_build
from rftd.workers.devices.host import Device
from rftd.workers.engines.vllm.tables import TABLES
from rftd.workers.generation.engine_definition import EnginePlan
from rftd.workers.models.cached_tokens import least_cache_bytes
from rftd.workers.models.model_type import causal_architectures, read_config

_FIELD: Final = "model.model_path"
"""Field of the model's folder, named by errors."""
_TORCH: Final = "write explorer.rollout_model.engine_type: torch, which runs it, or use another model"
"""Advice for a model that vLLM does not run."""
_CACHE_FIELD: Final = "explorer.rollout_model.extra_engine_args.kv_cache_memory_bytes"
"""Field of the size of vLLM's cache, named by errors."""
CPU_CACHE_BYTES: Final = 1 << 30
"""Default size of the cache on a CPU."""
_OTHER_CLASS: Final = frozenset({"hf_overrides", "model_class_overrides", "model_impl"})
"""vLLM's arguments for running a model as a class other than config.json's."""


def check_architecture(plan: EnginePlan[Any]) -> None:
    """Raises DataError for a model without an implementation in vLLM 0.31, or in its transformers backend."""
    folder = Path(plan.model.path)
    config = read_config(folder, _FIELD)
    own_code = plan.model.trust_remote_code and "auto_map" in config
    if own_code or _OTHER_CLASS & plan.arguments.vllm.keys():
        return
    architectures = [str(architecture) for architecture in config.get("architectures") or ()]
    if not architectures:
        raise DataError(
            "config.json names no architectures, by which vLLM chooses its model",
            where=str(folder),
            field=_FIELD,
            fix='add the class of the model, such as "architectures": ["Qwen2ForCausalLM"]',
        )
    if any(_runs(name) for name in architectures):
        return
    near = difflib.get_close_matches(architectures[0], TABLES.generating, 1, cutoff=0.9)
    raise DataError(
        f"vLLM 0.31 has no {', '.join(architectures)}, which config.json names as the model's architecture",
        where=str(folder),
        field=_FIELD,
        fix=f"did you mean {near[0]!r}? {_TORCH}" if near else _TORCH,
    )


def _runs(architecture: str) -> bool:
    """True if vLLM runs models of the architecture, by itself, its transformers backend, or one of its plug-ins."""
    if architecture in TABLES.generating:
        return True
    classes = causal_architectures()
    # vLLM's transformers backend runs the architectures of transformers missing in vLLM, except for these.
    if architecture in TABLES.not_carried:
        return False
    return architecture in classes or not classes or _has_plugins()


def _has_plugins() -> bool:
    """True if an installed third-party package may add models to vLLM."""
    plugins = metadata.entry_points(group="vllm.general_plugins")
    return any(plugin.dist is None or plugin.dist.name not in (CUDA_BUILD, CPU_BUILD) for plugin in plugins)


def check_heads(plan: EnginePlan[Any]) -> None:
    """Raises DataError for a model with a head size unsupported by vLLM's attention on a CPU."""
    if computes_on(plan) != "cpu":
        return
    folder = Path(plan.model.path)
    size = _head_size(settings_of(folder))
    if size and size not in TABLES.cpu_heads:
        raise DataError(
            f"the model's heads have {size} numbers each, and vLLM's attention on a CPU has heads of "
            f"{', '.join(map(str, TABLES.cpu_heads))}",
            where=str(folder),
            field=_FIELD,
            fix=_TORCH,
        )


def check_split(plan: EnginePlan[Any]) -> None:
    """Raises ConfigError if the model's attention does not divide into the requested number of parts.

    Heads of keys and values fewer than the parts are repeated, equally in each part.
    """
    parts = max(1, plan.rollout.needs.tensor_parallel_size)
    settings = settings_of(Path(plan.model.path))
    heads = number_in(settings, "num_attention_heads", "n_head")
    # Latent attention has no heads of keys and values, whatever config.json says.
    cached = 0 if "kv_lora_rank" in settings else number_in(settings, "num_key_value_heads")
    possible = [n for n in range(1, parts + 1) if not heads % n and not (cached and cached % n and n % cached)]
    if possible[-1] != parts:
        also = f", {cached} of keys and values" if cached else ""
        raise ConfigError(
            f"is {parts}, and the model has {heads} heads{also}, which do not divide among {parts} GPUs",
            field="explorer.rollout_model.tensor_parallel_size",
            fix=f"write {possible[-1]}",
        )


def memory(plan: EnginePlan[Any]) -> EngineMemory | None:
    """Returns the engine's memory of its device: its share of a GPU, else weights and cache; None if unknown."""
    device = _device(plan)
    if device is None:
        return None
    given_bytes = _fixed_cache_bytes(plan, device)
    if given_bytes:
        return EngineMemory(device, (_weights(plan), Need("cache", given_bytes)))
    share = plan.rollout.needs.gpu_memory_utilization
    return EngineMemory(device, (Need(f"{share:g} of its memory", int(share * device.memory_bytes)),))


def check_room(plan: EnginePlan[Any]) -> None:
    """Raises ConfigError, with the sum, if weights and the cache of one longest text exceed the engine's memory.

    The sum is vLLM's minimum for a start. Its further needs, and the present use by others, are not counted.
    """
    device = _device(plan)
    if device is None:
        return
    needs = plan.rollout.needs
    cache_dtype = "auto" if "kv_cache_dtype" not in plan.arguments.vllm else str(plan.arguments.vllm["kv_cache_dtype"])
    cached_bytes = least_cache_bytes(
        settings_of(Path(plan.model.path)),
        plan.model.max_model_len,
        _element_bytes(plan.rollout.dtype) if cache_dtype == "auto" else 1,
        spread=needs.tensor_parallel_size,
    )
    cache = Need(f"cache of one sequence of {plan.model.max_model_len} tokens", cached_bytes)
    given_bytes = _fixed_cache_bytes(plan, device)
    if given_bytes:
        if cache.size_bytes > given_bytes:
            raise ConfigError(
                f"{terms_of([cache])} > {shown(given_bytes)} for all of the cache",
                field=_CACHE_FIELD,
                fix=f"set it to {cache.size_bytes} at least, or lower model.max_model_len",
            )
        _check_sum([_weights(plan), Need("cache", given_bytes)], device, 1.0, _CACHE_FIELD, "lower it")
    else:
        share = needs.gpu_memory_utilization
        _check_sum([_weights(plan), cache], device, share, "explorer.rollout_model.gpu_memory_utilization", "raise it")


def _fixed_cache_bytes(plan: EnginePlan[Any], device: Device) -> int:
    """Returns the fixed size of the cache in bytes; 0 if the cache fills the engine's share of the device."""
    return int(plan.arguments.kv_cache_memory_bytes) or (0 if device.kind == "cuda" else CPU_CACHE_BYTES)


def _weights(plan: EnginePlan[Any]) -> Need:
    """Returns the memory needed by the weights on one GPU."""
    folder = Path(plan.model.path)
    # Packed weights are smaller than their numbers' dtype.
    element_bytes = 1 if "quantization_config" in settings_of(folder) else _element_bytes(plan.rollout.dtype)
    return Need("weights", elements_of(folder) * element_bytes // plan.rollout.needs.tensor_parallel_size)


def _check_sum(needs: list[Need], device: Device, share: float, field: str, first: str) -> None:
    """Raises ConfigError if the needs exceed `share` of the device's memory; `first` is the first advice."""
    sum_bytes = sum(need.size_bytes for need in needs)
    room_bytes = int(share * device.memory_bytes)
    if sum_bytes <= room_bytes:
        return
    share_term = f"{share:g} × " if share < 1 else ""
    of_it = f" = {shown(room_bytes)}" if share < 1 else ""
    helps = first if share < 1 and sum_bytes <= device.memory_bytes else ""
    more = "model.max_model_len, explorer.rollout_model.dtype bfloat16, or a smaller model"
    if device.kind == "cuda":
        more = f"explorer.rollout_model.tensor_parallel_size to split the model; a smaller {more}"
    raise ConfigError(
        f"{terms_of(needs)} = {shown(sum_bytes)} > {share_term}{shown(device.memory_bytes)} of {device.name}{of_it}",
        field=field,
        fix=", or ".join(filter(None, (helps, f"take {more}"))),
    )


def _element_bytes(dtype: str) -> int:
    """Returns the size of a number of a dtype."""
    return 4 if dtype == "float32" else 2


def _device(plan: EnginePlan[Any]) -> Device | None:
    """Returns the largest device of the engine's kind; None if its memory is unknown."""
    where = computes_on(plan)
    if not plan.host.seen or plan.host.clustered:
        return None
    devices = [candidate for candidate in plan.host.devices if candidate.kind == where and candidate.memory_bytes]
    return max(devices, key=lambda candidate: candidate.memory_bytes, default=None)


def computes_on(plan: EnginePlan[Any]) -> str:
    """Returns `cpu` or `cuda`; empty if unknown: the machine was not examined, or vLLM is not installed."""
    if plan.rollout.needs.device != "auto":
        return plan.rollout.needs.device
    build = vllm_build(plan.host)
    return build.device if plan.host.seen and isinstance(build, EngineBuild) else ""


def _head_size(settings: dict[str, Any]) -> int:
    """Returns the size of a head as read by vLLM; 0 if config.json has none, or attention has no such heads."""
    heads = number_in(settings, "num_attention_heads", "n_head")
    # Latent attention has another implementation; models with attention in some layers only use names of their own.
    if not heads or settings.keys() & {"kv_lora_rank", "attention_head_dim"}:
        return 0
    named = number_in(settings, "head_dim", "hidden_size_per_head")
    if named or settings.get("model_type") in TABLES.sized_heads:
        return named
    return number_in(settings, "hidden_size", "n_embd") // heads
