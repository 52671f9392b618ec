"""`extra_engine_args` of the torch rollout engine, and its opening; importable without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rftd.ops.errors import ConfigError
from rftd.ops.extras import TORCH
from rftd.workers.devices.compute_device import DeviceName, compute_device
from rftd.workers.devices.device_memory import EngineMemory, Need, elements_of, settings_of, shown, terms_of
from rftd.workers.generation.engine import RolloutEngine
from rftd.workers.generation.engine_definition import EngineOpening, EnginePlan, RolloutEngineDefinition
from rftd.workers.models.cached_tokens import least_cache_bytes

_DEVICE: Final = "explorer.rollout_model.extra_engine_args.device"
"""Field of the experiment file with the engine's device."""


class TorchRolloutArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments in `explorer.rollout_model.extra_engine_args`, other than `threads`."""

    device: DeviceName = "auto"
    """Device of weights, cache and drawing. `auto`: cuda if there is one and the experiment is not deterministic."""
    cuda_graphs: bool = True
    """Records decode steps on a GPU once and repeats them, if the model allows. No effect on a CPU."""


async def _open(opening: EngineOpening[TorchRolloutArgs]) -> RolloutEngine:
    """Opens the engine for an explorer, with its model and device."""
    from rftd.workers.engines.torch.rollout.engine import TorchRolloutEngine

    arguments = opening.arguments
    return await TorchRolloutEngine.open(
        opening.model.path,
        slots=opening.slots,
        max_model_len=opening.model.max_model_len,
        dtype=opening.rollout.dtype,
        device=compute_device(arguments.device, deterministic=opening.deterministic, field=_DEVICE),
        threads=opening.threads,
        deterministic=opening.deterministic,
        cuda_graphs=arguments.cuda_graphs,
        trust_remote_code=opening.model.trust_remote_code,
        biased=opening.biased,
    )


def memory(plan: EnginePlan[TorchRolloutArgs]) -> EngineMemory | None:
    """Returns the memory of the weights, and of keys and values of all requests; None if unknown."""
    host = plan.host
    device_name = plan.arguments.device
    on_gpu = bool(host.gpus) and (device_name == "cuda" or (device_name == "auto" and not plan.deterministic))
    devices = host.gpus if on_gpu else tuple(candidate for candidate in host.devices if candidate.kind == "cpu")
    device = max(devices, key=lambda candidate: candidate.memory_bytes, default=None)
    if not host.seen or host.clustered or device is None or not device.memory_bytes:
        return None
    folder = Path(plan.model.path)
    element_bytes = 4 if plan.rollout.dtype == "float32" else 2
    tokens = plan.model.max_model_len
    cache_bytes = plan.slots * least_cache_bytes(settings_of(folder), tokens, element_bytes)
    needs = (
        Need("weights", elements_of(folder) * element_bytes),
        Need(f"keys and values of {plan.slots} requests of {tokens} tokens", cache_bytes),
    )
    return EngineMemory(device, needs)


def check_room(plan: EnginePlan[TorchRolloutArgs]) -> None:
    """Raises ConfigError, with the arithmetic, if weights and cache exceed all memory of the device.

    Memory in use by other processes is checked when the engine opens.
    """
    engine_memory = memory(plan)
    if engine_memory is not None and engine_memory.size_bytes > engine_memory.device.memory_bytes:
        device, needs = engine_memory
        raise ConfigError(
            f"{terms_of(needs)} = {shown(engine_memory.size_bytes)} > {shown(device.memory_bytes)} of {device.name}",
            field="explorer.runner_per_model" if needs[0].size_bytes < device.memory_bytes else "model.model_path",
            fix="take a smaller explorer.runner_per_model or model.max_model_len, explorer.rollout_model.dtype "
            "bfloat16, or a smaller model",
        )


ENGINE: Final = RolloutEngineDefinition(
    arguments=TorchRolloutArgs, open=_open, checks=(check_room,), extra=TORCH, memory=memory
)
"""Definition of the rollout engine `torch`."""
