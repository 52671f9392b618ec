"""`extra_engine_args` of the vllm rollout engine, vLLM's own arguments, and the opening of the engine; importable
without vLLM.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.extras import TORCH
from rftd.workers.devices.engine_build import CPU_ENVIRONMENT
from rftd.workers.engines.vllm.checks import check_architecture, check_heads, check_room, check_split, memory
from rftd.workers.engines.vllm.refused import NEEDS, REFUSED, not_given
from rftd.workers.engines.vllm.watchdog import HANG_S
from rftd.workers.generation.engine_definition import EngineOpening, RolloutEngineDefinition

if TYPE_CHECKING:
    from rftd.workers.generation.engine import RolloutEngine

FIELD: Final = "explorer.rollout_model.extra_engine_args"
"""Field of the experiment file for vLLM's own arguments."""
WORKER: Final = "rftd.workers.engines.vllm.worker.RolloutWorker"
"""Class extending vLLM's worker processes."""

START_S: Final = 1800.0
"""Default time-out of vLLM's start in seconds: vLLM compiles, and profiles its memory."""
_NO_SHARE: Final = 0.01
"""Share of a GPU for a cache of fixed size: vLLM does not use the share, but starts only if it is free."""


class VllmArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments in `explorer.rollout_model.extra_engine_args`, other than `threads`."""

    kv_cache_memory_bytes: int = 0
    """Size of the cache of keys and values, overriding `gpu_memory_utilization`; 0: the remainder of that share, and on
    a CPU 1 GiB.
    """
    hang_timeout_s: Annotated[float, msgspec.Meta(ge=0)] = HANG_S
    """Seconds without progress after which an engine with requests is ended; 0: never."""
    vllm: dict[str, Any] = {}
    """Additional arguments of vLLM's AsyncEngineArgs, by vLLM's names."""


def engine_arguments(opening: EngineOpening[VllmArgs]) -> dict[str, Any]:
    """Returns the arguments of vLLM's AsyncEngineArgs. Raises ConfigError for unavailable arguments."""
    needs = opening.rollout.needs
    for name in ("data_parallel_size", "pipeline_parallel_size"):
        if getattr(needs, name) > 1:
            field = f"explorer.rollout_model.{name}"
            raise ConfigError(f"is {getattr(needs, name)}: {REFUSED[name]}", field=field, fix="write 1")
    for name, why, fix in not_given(opening.arguments.vllm):
        raise ConfigError(why, field=f"{FIELD}.vllm.{name}", fix=fix)
    from_needs: dict[str, Any] = {name: getattr(needs, name) for name in NEEDS if getattr(needs, name)}
    if opening.arguments.kv_cache_memory_bytes:
        from_needs["kv_cache_memory_bytes"] = opening.arguments.kv_cache_memory_bytes
        from_needs["gpu_memory_utilization"] = _NO_SHARE
    return {
        # First, so that it replaces nothing below.
        **opening.arguments.vllm,
        **from_needs,
        "model": opening.model.path,
        "max_model_len": opening.model.max_model_len,
        "trust_remote_code": opening.model.trust_remote_code,
        "dtype": opening.rollout.dtype,
        "max_num_seqs": slots_of(opening),
        # False is passed too, because vLLM's defaults differ.
        "enable_prefix_caching": needs.enable_prefix_caching,
        "enable_chunked_prefill": needs.enable_chunked_prefill,
        "generation_config": "vllm",
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": 1,
        "seed": 0,
        "disable_log_stats": True,
        "worker_extension_cls": WORKER,
    }


def slots_of(opening: EngineOpening[VllmArgs]) -> int:
    """Returns the number of requests running at once: the explorer's, at most `max_num_seqs`."""
    return min(opening.slots, opening.rollout.needs.max_num_seqs or opening.slots)


async def _open(opening: EngineOpening[VllmArgs]) -> RolloutEngine:
    """Opens the engine. Raises ConfigError for a deterministic run, or if vLLM is not installed."""
    arguments = engine_arguments(opening)
    if opening.deterministic:
        raise ConfigError(
            "vLLM rounds differently beside different neighbours, so one seed may draw different tokens",
            field="explorer.rollout_model.engine_type",
            fix="write torch, or leave deterministic out",
        )
    if find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed here",
            field="explorer.rollout_model.engine_type",
            fix=f"pip install 'rftd[vllm]' for GPUs; for a CPU {CPU_ENVIRONMENT}; or write torch",
        )
    from rftd.workers.engines.vllm.engine import VllmRolloutEngine

    return await VllmRolloutEngine.open(
        arguments,
        slots=slots_of(opening),
        device=opening.rollout.needs.device,
        start_timeout_s=opening.rollout.needs.start_timeout_s or START_S,
        biased=opening.biased,
        hang_timeout_s=opening.arguments.hang_timeout_s,
        clock=opening.clock,
        gpus=opening.gpus,
    )


ENGINE: Final = RolloutEngineDefinition(
    arguments=VllmArgs,
    open=_open,
    checks=(check_architecture, check_heads, check_split, check_room),
    extra=TORCH,
    memory=memory,
)
"""Definition of the rollout engine `vllm`."""
