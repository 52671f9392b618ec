"""`explorer.auxiliary_models`: the models that workflows and rewards ask, with engines of their own or at a service."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
from rftd.daemon.config.resolve.arguments import check_engine, check_struct, lifted_counts
from rftd.daemon.config.resolve.gpu_shares import (
    AuxiliaryEngineChoice,
    auxiliary_engine,
    engines_per_explorer,
    gpus_beside,
)
from rftd.daemon.config.resolve.model import LengthLimits
from rftd.daemon.config.resolve.rollout_engine import check_arguments, check_hang
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.explorer import AuxiliaryModel
from rftd.streams.spec.auxiliary import SERVICE, AuxiliarySpec
from rftd.streams.spec.engine_needs import EngineNeeds
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.engine_build import NoBuild, vllm_build
from rftd.workers.devices.host import Host
from rftd.workers.engines.vllm.arguments import START_S
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.generation.auxiliary.service_arguments import ServiceArgs

_GUIDES: Final = ("vllm", "openai", "tinker", "sglang")
"""Other engines of the guide."""
_PARALLEL: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Fields that engines with GPUs of their own look at."""
_ONE_ENGINE: Final = ("pipeline_parallel_size", "data_parallel_size")
"""Parallel sizes of an auxiliary model that vLLM takes as 1 only."""
_OF_VLLM: Final = ("gpu_memory_utilization", "enforce_eager")
_OF_ENGINES: Final = ("engine_num", "dtype", "chat_template")
_CONCURRENCY: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNNAMED: Final = re.compile(r"[^A-Za-z0-9._-]+")


def resolve_auxiliary(
    experiment: Experiment, lengths: LengthLimits, teacher_path: str, host: Host, notes: Notes
) -> tuple[AuxiliarySpec, ...]:
    """The auxiliary models of one stage, in the order of the file; their names are distinct.

    With a `teacher_path`, the first one is a part of the trainer, and has no GPUs among the explorers'.
    """
    specs: list[AuxiliarySpec] = []
    for number, declared in enumerate(experiment.explorer.auxiliary_models):
        path: FieldPath = ("explorer", "auxiliary_models", number)
        if declared.engine_type == SERVICE:
            spec = _at_service(declared, _spec(experiment, declared, SERVICE, lengths, path, notes), path, notes)
        else:
            choice = auxiliary_engine(experiment, declared, host)
            of_trainer = bool(teacher_path) and number == 0
            if of_trainer and choice.gpus:
                choice = AuxiliaryEngineChoice("torch")
            spec = _spec(experiment, declared, choice.engine, lengths, path, notes)
            spec = _with_engine(experiment, declared, spec, choice, host, path, notes)
            if not of_trainer:
                spec = _with_engines(experiment, declared, spec, choice, path, notes)
        _warn_idle(declared, spec, path, notes)
        specs.append(_named(declared, spec, [earlier.name for earlier in specs], path, notes))
    return tuple(specs)


def _with_engines(
    experiment: Experiment,
    declared: AuxiliaryModel,
    spec: AuxiliarySpec,
    choice: AuxiliaryEngineChoice,
    path: FieldPath,
    notes: Notes,
) -> AuxiliarySpec:
    """The model with its number of engines in each explorer; warns of another number than the file's."""
    explorers = experiment.explorer.rollout_model.engine_num
    engines = engines_per_explorer(experiment, declared)
    if "engine_num" in declared.model_fields_set and engines * explorers != declared.engine_num:
        taken = f", on {engines * explorers * choice.gpus} GPUs together" if choice.gpus else ""
        notes.warn(
            f"{show((*path, 'engine_num'))} {declared.engine_num} becomes {engines * explorers}{taken}: each of the "
            f"{explorers} explorers opens {engines} (explorer.rollout_model.engine_num)"
        )
    return msgspec.structs.replace(spec, engines=engines)


def unset_variables(spec: ExperimentSpec, environ: Mapping[str, str]) -> Iterator[str]:
    """A warning for each variable that a service needs and `environ` lacks: explorers may be elsewhere, or not."""
    needed = {
        variable: model.name
        for stage in spec.stages
        for model in stage.auxiliary
        for variable in (model.base_url_env, model.api_key_env)
        if variable
    }
    for variable, name in needed.items():
        if not environ.get(variable, "").strip():
            yield (
                f"the environment variable {variable}, which the auxiliary model {name!r} needs, is not set here: "
                f"explorers refuse to start without it; export it where they (or the daemon that starts them) run"
            )


def _spec(
    experiment: Experiment, declared: AuxiliaryModel, engine: str, lengths: LengthLimits, path: FieldPath, notes: Notes
) -> AuxiliarySpec:
    """The fields of engines and services alike; lengths and sampling are those of `model` where nothing is written."""
    model = experiment.model
    total = declared.max_model_len or lengths.model
    response = declared.max_response_tokens or min(lengths.response, total - 1)
    prompt = declared.max_prompt_tokens or total - response
    if prompt < total < prompt + response:
        # As in Trinity-RFT, whose engine stops where the model's length ends.
        notes.warn(
            f"{show((*path, 'max_model_len'))} is {total}, and prompt and response take {prompt} + {response}: "
            f"answers end after {total - prompt} tokens"
        )
        response = total - prompt
    if prompt < 1 or response < 1 or prompt + response > total:
        what = f"is {total}, and prompt and response take {max(prompt, 1)} + {max(response, 1)}"
        notes.wrong((*path, "max_model_len"), what, "raise it, or lower the lengths")
    return AuxiliarySpec(
        name="",
        engine=engine,
        path=declared.model_path or "",
        max_model_len=total,
        max_prompt_tokens=prompt,
        max_response_tokens=response,
        chat_template=declared.chat_template,
        enable_thinking=declared.enable_thinking,
        trust_remote_code=model.trust_remote_code,
        temperature=model.temperature if declared.temperature is None else declared.temperature,
        top_p=model.top_p if declared.top_p is None else declared.top_p,
        top_k=model.top_k if declared.top_k is None else declared.top_k,
        concurrency=declared.max_num_seqs or _CONCURRENCY,
        engine_args=declared.extra_engine_args,
    )


def _at_service(declared: AuxiliaryModel, spec: AuxiliarySpec, path: FieldPath, notes: Notes) -> AuxiliarySpec:
    """The model of a service. Of its key only the name of a variable is kept."""
    if not declared.model_name:
        notes.wrong((*path, "model_name"), "is required", "write what the service calls the model", Contradiction)
    address = declared.base_url
    if not address:
        fix = "write the service's address up to /v1, or {env: NAME}"
        notes.wrong((*path, "base_url"), "is required", fix, Contradiction)
    elif isinstance(address, str) and not address.startswith(("http://", "https://")):
        notes.wrong((*path, "base_url"), "is no http address", "begin it with http:// or https://", WrongValue)
    if declared.model_path:
        notes.warn(f"{show((*path, 'model_path'))} has no effect: engine_type is {SERVICE}")
    if declared.enable_thinking is not None:
        what = f"is {str(declared.enable_thinking).lower()}, and a service fills its chat template in by itself"
        notes.wrong((*path, "enable_thinking"), what, "start the service with it, and leave it out here", Unsupported)
    check_struct(declared.extra_engine_args, ServiceArgs, (*path, "extra_engine_args"), "a service", notes)
    return msgspec.structs.replace(
        spec,
        model_name=declared.model_name or "",
        base_url=address if isinstance(address, str) else "",
        base_url_env=_variable(address),
        api_key_env=_variable(declared.api_key),
    )


def _warn_idle(declared: AuxiliaryModel, spec: AuxiliarySpec, path: FieldPath, notes: Notes) -> None:
    """Warns of fields of an engine that another one, or a service, does not look at."""
    parallel = () if spec.needs.devices else _PARALLEL
    names = (*parallel, *(() if spec.engine == "vllm" else _OF_VLLM), *(_OF_ENGINES if spec.served else ()))
    fields = type(declared).model_fields
    taker = "a service answers" if spec.served else f"{spec.engine} answers, on one device"
    for name in names:
        if name in declared.model_fields_set and getattr(declared, name) != fields[name].default:
            notes.warn(f"{show((*path, name))} has no effect: {taker}")


def _variable(value: Any) -> str:
    """The variable that `{env: NAME}` names; a value is none, and whatever is secret has been refused by now."""
    return str(value["env"]) if isinstance(value, dict) else ""


def _with_engine(
    experiment: Experiment,
    declared: AuxiliaryModel,
    spec: AuxiliarySpec,
    choice: AuxiliaryEngineChoice,
    host: Host,
    path: FieldPath,
    notes: Notes,
) -> AuxiliarySpec:
    """The model with an engine in each explorer."""
    where = (*path, "engine_type")
    if not declared.model_path and spec.engine != "fake":
        fix = f"write the model's folder, or engine_type: {SERVICE} and where it is served"
        notes.wrong((*path, "model_path"), "is required", fix, Contradiction)
    for name in ("model_name", "base_url"):
        if getattr(declared, name):
            notes.warn(f"{show((*path, name))} has no effect: it is for engine_type {SERVICE}")
    check_engine(rollout_engines.ENGINES, spec.engine, _GUIDES, where, notes)
    arguments = (*path, "extra_engine_args")
    args, lifted = lifted_counts(declared.extra_engine_args, ("threads",), arguments, notes)
    check_arguments(spec.engine, args, arguments, notes)
    check_hang(spec.engine, args, experiment.explorer.max_timeout, arguments, notes)
    needs = EngineNeeds(gpu_memory_utilization=declared.gpu_memory_utilization, enforce_eager=declared.enforce_eager)
    if spec.engine == "vllm":
        _check_vllm(experiment, declared, choice, host, path, notes)
        needs = msgspec.structs.replace(
            needs,
            device=choice.device,
            devices=choice.gpus,
            tensor_parallel_size=declared.tensor_parallel_size if choice.gpus else 1,
            start_timeout_s=START_S,
        )
    elif host.gpus and spec.engine == "torch" and (counted := gpus_beside(experiment, declared, host)):
        notes.warn(
            f"explorer.auxiliary_models: torch generates on the GPU of its explorer, beside the model that is trained; "
            f"the {counted} counted for it stay free"
        )
    dtype = "bfloat16" if choice.device == "cuda" else "float32"
    if "dtype" in declared.model_fields_set and declared.dtype != "auto":
        dtype = declared.dtype
    return msgspec.structs.replace(spec, engine_args=args, threads=lifted.get("threads", 1), needs=needs, dtype=dtype)


def _check_vllm(
    experiment: Experiment,
    declared: AuxiliaryModel,
    choice: AuxiliaryEngineChoice,
    host: Host,
    path: FieldPath,
    notes: Notes,
) -> None:
    """Refuses vLLM where it does not run, and what it would refuse when it is opened."""
    where = (*path, "engine_type")
    served_elsewhere = f"serve it by itself, and write engine_type: {SERVICE}"
    build = vllm_build(host)
    # Of a machine that nobody has looked at neither packages nor GPUs are known: whoever starts workers looks.
    if isinstance(build, NoBuild) and host.seen:
        notes.wrong(where, f"is vllm, and {build.why}", f"{build.fix}; or {served_elsewhere}", Unsupported)
    if choice.gpus and experiment.mode == "colocate":
        what = "is vllm on GPUs of its own, and mode colocate is for one device"
        notes.wrong(where, what, f"{served_elsewhere}; or write mode: both", Unsupported)
    for name in _ONE_ENGINE if choice.gpus else ():
        if (size := getattr(declared, name)) > 1:
            what = f"is {size}, and an engine of the model is not spread so"
            notes.wrong((*path, name), what, "write 1, or raise tensor_parallel_size", Unsupported)


def _named(
    declared: AuxiliaryModel, spec: AuxiliarySpec, taken: list[str], path: FieldPath, notes: Notes
) -> AuxiliarySpec:
    """The name that is written, which nobody else may have; else one made of the model's."""
    if declared.name is not None:
        if not _NAME.fullmatch(declared.name):
            notes.wrong((*path, "name"), f"is {declared.name!r}", "take letters, digits, dots and dashes", WrongValue)
        if declared.name in taken:
            notes.wrong((*path, "name"), f"{declared.name!r} is the name of another one", "give each its own")
        return msgspec.structs.replace(spec, name=declared.name)
    base = _UNNAMED.sub("-", PurePath(declared.model_name or declared.model_path or spec.engine).name).strip(".-")[:48]
    base = base or "model"
    number = next(n for n in range(1, len(taken) + 2) if (base if n == 1 else f"{base}-{n}") not in taken)
    return msgspec.structs.replace(spec, name=base if number == 1 else f"{base}-{number}")
