"""Checks of a model before vLLM is started: it says of what it does not run only that its start failed."""

from __future__ import annotations

import difflib
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from rftd.ops.errors import DataError
from rftd.workers.devices.device_memory import number_in, settings_of
from rftd.workers.devices.engine_build import CPU_BUILD, CUDA_BUILD, EngineBuild, vllm_build
from rftd.workers.models.model_type import causal_architectures, read_config
from rftd.workers.rollout.engines.definition import EnginePlan
from rftd.workers.rollout.engines.vllm.architectures import CPU_HEADS, KNOWN, NOT_CARRIED, SIZED_HEADS

_FIELD: Final = "model.model_path"
_TORCH: Final = "write explorer.rollout_model.engine_type: torch, which runs it, or use another model"
_OTHER_CLASS: Final = frozenset({"hf_overrides", "model_class_overrides", "model_impl"})
"""Arguments of vLLM by which a model is run as another class than config.json says."""


def check_architecture(plan: EnginePlan[Any]) -> None:
    """Raises DataError for a model of which vLLM 0.31 has no implementation, nor its transformers backend one."""
    folder = Path(plan.model.path)
    config = read_config(folder, _FIELD)
    own_code = plan.model.trust_remote_code and "auto_map" in config
    if own_code or _OTHER_CLASS & plan.arguments.vllm.keys():
        return
    named = [str(each) for each in config.get("architectures") or ()]
    if not named:
        raise DataError(
            "config.json names no architectures, by which vLLM chooses its model",
            where=str(folder),
            field=_FIELD,
            fix='add the class of the model, such as "architectures": ["Qwen2ForCausalLM"]',
        )
    if any(_runs(name) for name in named):
        return
    near = difflib.get_close_matches(named[0], KNOWN, 1, cutoff=0.9)
    raise DataError(
        f"vLLM 0.31 has no {', '.join(named)}, which config.json names as the model's architecture",
        where=str(folder),
        field=_FIELD,
        fix=f"did you mean {near[0]!r}? {_TORCH}" if near else _TORCH,
    )


def _runs(architecture: str) -> bool:
    if architecture in KNOWN:
        return True
    classes = causal_architectures()
    # What transformers has and vLLM does not is run by vLLM's transformers backend, but for these.
    if architecture in NOT_CARRIED:
        return False
    return architecture in classes or not classes or _has_plugins()


def _has_plugins() -> bool:
    """True if a package of somebody else may have brought vLLM models of its own."""
    found = metadata.entry_points(group="vllm.general_plugins")
    return any(each.dist is None or each.dist.name not in (CUDA_BUILD, CPU_BUILD) for each in found)


def check_heads(plan: EnginePlan[Any]) -> None:
    """Raises DataError for a model whose heads have a size that vLLM's attention on a CPU does not have."""
    if computes_on(plan) != "cpu":
        return
    folder = Path(plan.model.path)
    size = _head_size(settings_of(folder))
    if size and size not in CPU_HEADS:
        raise DataError(
            f"the model's heads have {size} numbers each, and vLLM's attention on a CPU has heads of "
            f"{', '.join(map(str, CPU_HEADS))}",
            where=str(folder),
            field=_FIELD,
            fix=_TORCH,
        )


def computes_on(plan: EnginePlan[Any]) -> str:
    """`cpu` or `cuda`, or nothing where that is not known: nobody has looked at the machine, or vLLM is not there."""
    if plan.rollout.needs.device != "auto":
        return plan.rollout.needs.device
    build = vllm_build(plan.host)
    return build.device if plan.host.seen and isinstance(build, EngineBuild) else ""


def _head_size(settings: dict[str, Any]) -> int:
    """The size of a head, as vLLM reads it; 0 where config.json does not tell, or attention has no such heads."""
    heads = number_in(settings, "num_attention_heads", "n_head")
    # Latent attention has another implementation; what attends in some layers only has names of its own.
    if not heads or settings.keys() & {"kv_lora_rank", "attention_head_dim"}:
        return 0
    named = number_in(settings, "head_dim", "hidden_size_per_head")
    if named or settings.get("model_type") in SIZED_HEADS:
        return named
    return number_in(settings, "hidden_size", "n_embd") // heads
