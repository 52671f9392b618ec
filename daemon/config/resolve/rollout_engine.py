"""The engine that generates: chosen from what there is, or as the file asks for it; and what it needs of its host."""

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
from rftd.streams.spec.auxiliary import SERVICE
from rftd.streams.spec.engine_needs import EngineNeeds
from rftd.workers.devices.engine_build import NoBuild, vllm_build
from rftd.workers.devices.host import Host
from rftd.workers.engines.vllm.arguments import START_S
from rftd.workers.engines.vllm.refused import REFUSED, misplaced, not_given
from rftd.workers.engines.vllm.tables import ASYNC_ENGINE_ARGS
from rftd.workers.engines.vllm.watchdog import HANG_S
from rftd.workers.generation.engine_registry import ENGINES, arguments_of

ON_CPU: Final = "float32"
"""The number format where no GPU computes and the file names none."""
BESIDE_TRAINER: Final = 0.4
"""The share of the one GPU's memory that vLLM takes with mode colocate, where the file names none: it keeps its share
in the trainer's turns too."""
_TYPE: Final[FieldPath] = ("explorer", "rollout_model", "engine_type")
_GUIDES: Final = ("vllm", "openai", "tinker", "sglang")
"""The engines of the guide."""
_ALONE: Final = frozenset({"torch", "fake", "tinker", SERVICE})
"""Engines of ours that compute on one device at most, and batch by themselves: of the needs they look at none but the
time."""
_SERVED: Final = (
    "enable_expert_parallel",
    "enforce_eager",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
)
"""Fields of the needs that have the same names in the file."""


def check_arguments(engine: str, arguments: dict[str, Any], path: FieldPath, notes: Notes) -> None:
    """Refuses arguments that the engine does not take, or would refuse when it is opened; not those of others' engines.

    `threads`, which every engine takes, was taken out before.
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
        beside = list(misplaced(arguments, kind.__struct_fields__))
        for name, why, fix in beside:
            notes.wrong((*path, name), why, fix, _kind(name))
        told = {name for name, _, _ in beside}
        arguments = {name: value for name, value in arguments.items() if name not in told}
    check_struct(arguments, kind, path, f"the {engine} engine", notes, beside=("threads",))


def check_hang(engine: str, arguments: Mapping[str, Any], max_timeout_s: float, path: FieldPath, notes: Notes) -> None:
    """Refuses a time without progress that every rollout's time-out ends before, and warns of the default's.

    A rollout that ends takes its requests along: an engine without requests is none that hangs.
    """
    written = arguments.get("hang_timeout_s")
    hang_s = HANG_S if written is None else written
    # What is no number is refused as an argument.
    if engine != "vllm" or not isinstance(hang_s, int | float) or not 0 < max_timeout_s <= hang_s:
        return
    where = (*path, "hang_timeout_s")
    what = (
        f"{hang_s:g} s, and explorer.max_timeout {max_timeout_s:g} s ends all rollouts of an engine that hangs before"
    )
    if written is None:
        notes.warn(f"{show(where)} is {what} it is noticed: write a part of that time, or 0 to look for none")
    else:
        notes.wrong(where, f"is {what}", "write a part of that time, or raise explorer.max_timeout; 0 looks for none")


def _kind(argument: str) -> type[FieldError]:
    if argument in REFUSED:
        return Unsupported
    return WrongValue if argument in ASYNC_ENGINE_ARGS else UnknownField


class ChosenEngine(NamedTuple):
    """The rollout engine of a stage, and where it computes."""

    engine: str
    device: str
    """`cuda`, `cpu`, or `auto`: the engine sees for itself."""


def choose_engine(experiment: Experiment, host: Host, notes: Notes) -> ChosenEngine:
    """The engine that is written, or refused with the reason; one that is not is vLLM on a GPU, else torch."""
    model = experiment.explorer.rollout_model
    if experiment.model.tinker.enable:  # its engine has taken the place of what is written
        return ChosenEngine(model.engine_type, "auto")
    if experiment.model.external_model.enable or model.engine_type == SERVICE:
        check_external(experiment, notes)
        return ChosenEngine(SERVICE, "auto")
    if "engine_type" not in model.model_fields_set:
        return _unwritten(experiment, host, notes)
    if model.engine_type != "vllm":
        check_engine(ENGINES, model.engine_type, _GUIDES, _TYPE, notes)
        return ChosenEngine(model.engine_type, "auto")
    _check_vllm(experiment, notes)
    if not host.seen:
        return ChosenEngine("vllm", "auto")
    build = vllm_build(host)
    if isinstance(build, NoBuild):
        notes.wrong(_TYPE, f"is vllm, and {build.why}", f"{build.fix}; or write torch", Unsupported)
        return ChosenEngine("vllm", "auto")
    return ChosenEngine("vllm", build.device)


def _check_vllm(experiment: Experiment, notes: Notes) -> None:
    """Refuses what the engine would refuse when it is opened."""
    model = experiment.explorer.rollout_model
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        if (size := getattr(model, name)) > 1:
            what = f"is {size}, and vllm is one engine whose weights change at one token: engine_num makes more of them"
            notes.wrong(("explorer", "rollout_model", name), what, "write 1", Unsupported)
    if experiment.deterministic:
        what = "is vllm, which rounds otherwise beside other neighbours, and the experiment is deterministic"
        notes.wrong(_TYPE, what, "write torch, or deterministic: false", Unsupported)


def _unwritten(experiment: Experiment, host: Host, notes: Notes) -> ChosenEngine:
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
    elif (left := shares_of(experiment, host).left) < int(host.trainers is None):
        why = f"vLLM would leave {max(left, 0)} of {host.named()} for the trainer"
    else:
        return ChosenEngine("vllm", "cuda")
    where = where_torch_computes(experiment, experiment.explorer.rollout_model.extra_engine_args, host)
    notes.warn(f"explorer.rollout_model.engine_type is not set: torch generates{where}: {why}")
    return ChosenEngine("torch", "auto")


def resolve_dtype(experiment: Experiment, chosen: ChosenEngine, host: Host) -> str:
    """The number format: the one that is written; else the guide's bfloat16 on a GPU, and float32 elsewhere."""
    model = experiment.explorer.rollout_model
    # `auto` is none that is written: what the model's files hold is not looked at here.
    if "dtype" in model.model_fields_set and model.dtype != "auto":
        return model.dtype
    return "bfloat16" if _on_gpu(experiment, chosen, host) else ON_CPU


def _on_gpu(experiment: Experiment, chosen: ChosenEngine, host: Host) -> bool:
    if chosen.engine == "torch":
        return computes_on_gpu(experiment, experiment.explorer.rollout_model.extra_engine_args, host)
    if chosen.engine == "vllm":
        return chosen.device == "cuda"
    return chosen.engine != "fake" and bool(host.gpus)


def computes_on_gpu(experiment: Experiment, engine_args: dict[str, Any], host: Host) -> bool:
    """True if a torch engine with these arguments computes on a GPU of the host, as it sees for itself."""
    asked = engine_args.get("device", "auto")
    return bool(host.gpus) and (asked == "cuda" or (asked == "auto" and not experiment.deterministic))


def where_torch_computes(experiment: Experiment, engine_args: dict[str, Any], host: Host) -> str:
    """The end of a sentence that says so: `, on the CPU`; empty where nobody has looked."""
    if not host.seen:
        return ""
    return ", on a GPU" if computes_on_gpu(experiment, engine_args, host) else ", on the CPU"


def resolve_needs(experiment: Experiment, chosen: ChosenEngine, notes: Notes) -> EngineNeeds:
    """The needs that the engine has of its host; a field without effect on the engine is a warning."""
    model = experiment.explorer.rollout_model
    start_s = model.start_timeout or (START_S if chosen.engine == "vllm" else 0.0)
    if chosen.engine in _ALONE:
        _warn_ignored(model, chosen, notes)
        return EngineNeeds(start_timeout_s=start_s)
    parallel = parallel_of(model)
    if chosen.device == "cpu" and parallel > 1:
        notes.warn("explorer.rollout_model: parallel sizes have no effect: vllm generates on the CPU")
        parallel = 1
    split = parallel > 1
    share = model.gpu_memory_utilization
    if experiment.mode == "colocate" and "gpu_memory_utilization" not in model.model_fields_set:
        share = BESIDE_TRAINER
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
    if parallel_of(model) > 1:
        notes.warn(
            f"explorer.rollout_model: tensor, data and pipeline parallel sizes have no effect: {chosen.engine} "
            f"generates, on one device"
        )
    for name in _SERVED:
        default = RolloutModel.model_fields[name].default
        if name in model.model_fields_set and getattr(model, name) != default:
            notes.warn(f"explorer.rollout_model.{name} has no effect: it is for vllm, and {chosen.engine} generates")
