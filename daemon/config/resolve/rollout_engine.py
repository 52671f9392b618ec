"""The rollout engine: chosen for the host or as set in the file, and the engine's requirements on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import FieldError, Issue, Notes, UnknownField, Unsupported, WrongValue
from rftd.daemon.config.resolve.arguments import check_engine, check_struct
from rftd.daemon.config.resolve.bench import check_external
from rftd.daemon.config.resolve.gpu_shares import parallel_of, shares_of
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.explorer import RolloutModel
from rftd.streams.spec.engines import SERVICE, EngineNeeds
from rftd.workers.devices.engine_build import NoBuild, vllm_build
from rftd.workers.devices.host import Host
from rftd.workers.engines.vllm.arguments import START_S
from rftd.workers.engines.vllm.refused import REFUSED, misplaced, not_given
from rftd.workers.engines.vllm.tables import ASYNC_ENGINE_ARGS
from rftd.workers.engines.vllm.watchdog import HANG_S
from rftd.workers.generation.engine_registry import ENGINES, arguments_of

CPU_DTYPE: Final = "float32"
"""Number format used on the CPU unless the file sets one."""
COLOCATED_MEMORY_SHARE: Final = 0.4
"""Default share of the GPU's memory for vLLM in mode colocate, where it is occupied while the trainer computes, too."""
_TYPE: Final[FieldPath] = ("explorer", "rollout_model", "engine_type")
"""Field of the engine's name."""
_GUIDES: Final = ("vllm", "openai", "tinker", "sglang")
"""Engines of the guide."""
_SINGLE_DEVICE_ENGINES: Final = frozenset({"torch", "fake", "tinker", SERVICE})
"""Built-in engines on at most one device with built-in batching; of all requirements only the time-out applies."""
_SERVED: Final = (
    "enable_expert_parallel",
    "enforce_eager",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
)
"""Settings of `EngineNeeds` with equal names in the file."""


def check_arguments(engine: str, arguments: dict[str, Any], path: FieldPath, notes: Notes) -> None:
    """Refuses arguments not accepted by the engine, now or when opened; third-party engines are not checked.

    `threads`, accepted by every engine, is already removed.
    """
    kind = arguments_of(engine)
    if kind is None:
        return
    if engine == "vllm":
        nested = arguments.get("vllm")
        for name, why, fix in not_given(nested) if isinstance(nested, dict) else ():
            kind_of_error = _kind(name)
            at_key = kind_of_error is UnknownField
            notes.issues.append(Issue((*path, "vllm", name), why, fix, kind_of_error, at_key=at_key))
        misplaced_arguments = list(misplaced(arguments, kind.__struct_fields__))
        for name, why, fix in misplaced_arguments:
            notes.wrong((*path, name), why, fix, _kind(name))
        reported = {name for name, _, _ in misplaced_arguments}
        arguments = {name: argument for name, argument in arguments.items() if name not in reported}
    check_struct(arguments, kind, path, f"the {engine} engine", notes, extra_names=("threads",))


def check_hang(engine: str, arguments: Mapping[str, Any], max_timeout_s: float, path: FieldPath, notes: Notes) -> None:
    """Refuses a hang time-out longer than every rollout's time-out, and warns if the default is too long.

    A rollout that times out cancels its requests: an engine without requests never counts as hung.
    """
    setting = arguments.get("hang_timeout_s")
    hang_s = HANG_S if setting is None else setting
    # Non-numbers are refused as arguments.
    if engine != "vllm" or not isinstance(hang_s, int | float) or not 0 < max_timeout_s <= hang_s:
        return
    where = (*path, "hang_timeout_s")
    problem = f"{hang_s:g} s, but explorer.max_timeout {max_timeout_s:g} s ends all rollouts of a hung engine before"
    if setting is None:
        notes.warn(f"{show(where)} is {problem} it is detected: write a shorter time, or 0 to disable detection")
    else:
        notes.wrong(where, f"is {problem}", "write a shorter time, or raise explorer.max_timeout; 0 disables detection")


def _kind(argument: str) -> type[FieldError]:
    """Returns the kind of error for an argument of vLLM: unsupported, wrong, or unknown."""
    if argument in REFUSED:
        return Unsupported
    return WrongValue if argument in ASYNC_ENGINE_ARGS else UnknownField


class ChosenEngine(NamedTuple):
    """The rollout engine chosen for a stage, and the device it computes on."""

    engine: str
    """Name of the engine."""
    device: str
    """`cuda`, `cpu`, or `auto`: chosen by the engine."""


def choose_engine(experiment: Experiment, host: Host, notes: Notes) -> ChosenEngine:
    """Returns the engine set in the file, or refuses it with the reason; if unset, vLLM on a GPU, otherwise torch."""
    model = experiment.explorer.rollout_model
    if experiment.model.tinker.enable:  # the service's engine replaces the file's
        return ChosenEngine(model.engine_type, "auto")
    if experiment.model.external_model.enable or model.engine_type == SERVICE:
        check_external(experiment, notes)
        return ChosenEngine(SERVICE, "auto")
    if "engine_type" not in model.model_fields_set:
        return _default_engine(experiment, host, notes)
    if model.engine_type != "vllm":
        check_engine(ENGINES, model.engine_type, _GUIDES, _TYPE, notes)
        return ChosenEngine(model.engine_type, "auto")
    _check_vllm(experiment, notes)
    if not host.seen:
        return ChosenEngine("vllm", "auto")
    build = vllm_build(host)
    if isinstance(build, NoBuild):
        notes.wrong(_TYPE, f"is vllm, but {build.why}", f"{build.fix}; or write torch", Unsupported)
        return ChosenEngine("vllm", "auto")
    return ChosenEngine("vllm", build.device)


def _check_vllm(experiment: Experiment, notes: Notes) -> None:
    """Refuses settings that the engine would refuse when opened."""
    model = experiment.explorer.rollout_model
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        if (size := getattr(model, name)) > 1:
            problem = f"is {size}, but all of vllm's weights must change at one token; use engine_num for more engines"
            notes.wrong(("explorer", "rollout_model", name), problem, "write 1", Unsupported)
    if experiment.deterministic:
        problem = "is vllm, whose rounding depends on the batch, but the experiment is deterministic"
        notes.wrong(_TYPE, problem, "write torch, or deterministic: false", Unsupported)


def _default_engine(experiment: Experiment, host: Host, notes: Notes) -> ChosenEngine:
    """Returns the engine if the file sets none: vLLM where available on a GPU, else torch; on a host with GPUs, torch
    comes with a warning giving the reason.
    """
    if not host.gpus:
        return ChosenEngine("torch", "auto")
    build = vllm_build(host)
    if isinstance(build, NoBuild):
        why = f"{build.why} where workers run; {build.fix}"
    elif build.device != "cuda":
        why = f"{build.package} is the CPU build"
    elif experiment.deterministic:
        why = "the experiment is deterministic"
    elif experiment.mode == "colocate" and parallel_of(experiment.explorer.rollout_model) == 1:
        return ChosenEngine("vllm", "cuda")
    elif (remaining := shares_of(experiment, host).left) < int(host.trainers is None):
        why = f"vLLM would leave {max(remaining, 0)} of {host.named()} for the trainer"
    else:
        return ChosenEngine("vllm", "cuda")
    where = where_torch_computes(experiment, experiment.explorer.rollout_model.extra_engine_args, host)
    notes.warn(f"explorer.rollout_model.engine_type is not set: torch generates{where}: {why}")
    return ChosenEngine("torch", "auto")


def resolve_dtype(experiment: Experiment, chosen: ChosenEngine, host: Host) -> str:
    """Returns the number format set in the file; if unset, bfloat16 on a GPU (as in the guide), and float32
    on a CPU.
    """
    model = experiment.explorer.rollout_model
    # `auto` counts as unset: the format of the model's files is not inspected here.
    if "dtype" in model.model_fields_set and model.dtype != "auto":
        return model.dtype
    return "bfloat16" if _on_gpu(experiment, chosen, host) else CPU_DTYPE


def _on_gpu(experiment: Experiment, chosen: ChosenEngine, host: Host) -> bool:
    """True if the engine computes on a GPU of the host."""
    if chosen.engine == "torch":
        return computes_on_gpu(experiment, experiment.explorer.rollout_model.extra_engine_args, host)
    if chosen.engine == "vllm":
        return chosen.device == "cuda"
    return chosen.engine != "fake" and bool(host.gpus)


def computes_on_gpu(experiment: Experiment, engine_args: dict[str, Any], host: Host) -> bool:
    """True if a torch engine with these arguments would choose a GPU of the host."""
    device = engine_args.get("device", "auto")
    return bool(host.gpus) and (device == "cuda" or (device == "auto" and not experiment.deterministic))


def where_torch_computes(experiment: Experiment, engine_args: dict[str, Any], host: Host) -> str:
    """Returns the text `, on the CPU` or `, on a GPU` for messages; empty for a host not inspected."""
    if not host.seen:
        return ""
    return ", on a GPU" if computes_on_gpu(experiment, engine_args, host) else ", on the CPU"


def resolve_needs(experiment: Experiment, chosen: ChosenEngine, notes: Notes) -> EngineNeeds:
    """Returns the engine's settings for devices and memory; warns of fields without effect on this engine."""
    model = experiment.explorer.rollout_model
    start_s = model.start_timeout or (START_S if chosen.engine == "vllm" else 0.0)
    if chosen.engine in _SINGLE_DEVICE_ENGINES:
        _warn_ignored(model, chosen, notes)
        return EngineNeeds(start_timeout_s=start_s)
    parallel = parallel_of(model)
    if chosen.device == "cpu" and parallel > 1:
        notes.warn("explorer.rollout_model: parallel sizes have no effect: vllm generates on the CPU")
        parallel = 1
    split = parallel > 1
    share = model.gpu_memory_utilization
    if experiment.mode == "colocate" and "gpu_memory_utilization" not in model.model_fields_set:
        share = COLOCATED_MEMORY_SHARE
    return EngineNeeds(
        device=chosen.device,
        tensor_parallel_size=model.tensor_parallel_size if split else 1,
        pipeline_parallel_size=model.pipeline_parallel_size if split else 1,
        data_parallel_size=model.data_parallel_size if split else 1,
        enable_expert_parallel=model.enable_expert_parallel,
        gpu_memory_utilization=share,
        enforce_eager=model.enforce_eager,
        enable_prefix_caching=model.enable_prefix_caching,
        enable_chunked_prefill=model.enable_chunked_prefill,
        max_num_seqs=model.max_num_seqs or 0,
        max_num_batched_tokens=model.max_num_batched_tokens or 0,
        start_timeout_s=start_s,
    )


def _warn_ignored(model: RolloutModel, chosen: ChosenEngine, notes: Notes) -> None:
    """Warns of vLLM's settings written for another engine."""
    if parallel_of(model) > 1:
        notes.warn(
            f"explorer.rollout_model: tensor, data and pipeline parallel sizes have no effect: {chosen.engine} "
            f"generates, on one device"
        )
    for name in _SERVED:
        default = RolloutModel.model_fields[name].default
        if name in model.model_fields_set and getattr(model, name) != default:
            notes.warn(f"explorer.rollout_model.{name} has no effect: only used by vllm, and {chosen.engine} generates")
