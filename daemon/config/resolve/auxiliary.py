"""`explorer.auxiliary_models`: models called by workflows and rewards, with dedicated engines or at a service."""

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
    auxiliary_gpus,
    engines_per_explorer,
)
from rftd.daemon.config.resolve.model import LengthLimits
from rftd.daemon.config.resolve.rollout_engine import check_arguments, check_hang
from rftd.daemon.config.resolve.web_addresses import check_web_address
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.explorer import AuxiliaryModel
from rftd.streams.spec.engines import SERVICE, AuxiliarySpec, EngineNeeds
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.engine_build import NoBuild, vllm_build
from rftd.workers.devices.host import Host
from rftd.workers.engines.vllm.arguments import START_S
from rftd.workers.generation import engine_registry as rollout_engines
from rftd.workers.generation.auxiliary.service_arguments import ServiceArgs

_GUIDES: Final = ("vllm", "openai", "tinker", "sglang")
"""Other engines of the guide."""
_PARALLEL: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
"""Fields with an effect only for engines with reserved GPUs."""
_SIZES_FIXED_AT_1: Final = ("pipeline_parallel_size", "data_parallel_size")
"""Parallel sizes of an auxiliary model accepted by vLLM only as 1."""
_VLLM_FIELDS: Final = ("gpu_memory_utilization", "enforce_eager")
"""Fields used only by vLLM."""
_ENGINE_FIELDS: Final = ("engine_num", "dtype", "chat_template")
"""Fields not used with a service."""
_CONCURRENCY: Final = 16
"""Default number of concurrent requests."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A valid name of an auxiliary model."""
_UNNAMED: Final = re.compile(r"[^A-Za-z0-9._-]+")
"""Characters of a model's name replaced by dashes."""


def resolve_auxiliary(
    experiment: Experiment, lengths: LengthLimits, teacher_path: str, host: Host, notes: Notes
) -> tuple[AuxiliarySpec, ...]:
    """Returns the auxiliary models of one stage, in the order of the file and with distinct names.

    With a `teacher_path`, the first model is a part of the trainer, without GPUs among the explorers'.
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
        specs.append(_with_name(declared, spec, [earlier.name for earlier in specs], path, notes))
    return tuple(specs)


def _with_engines(
    experiment: Experiment,
    declared: AuxiliaryModel,
    spec: AuxiliarySpec,
    choice: AuxiliaryEngineChoice,
    path: FieldPath,
    notes: Notes,
) -> AuxiliarySpec:
    """Returns the model with its number of engines in each explorer; warns if the total differs from the file's
    number.
    """
    explorers = experiment.explorer.rollout_model.engine_num
    engines = engines_per_explorer(experiment, declared)
    if "engine_num" in declared.model_fields_set and engines * explorers != declared.engine_num:
        gpu_usage = f", on {engines * explorers * choice.gpus} GPUs together" if choice.gpus else ""
        notes.warn(
            f"{show((*path, 'engine_num'))} {declared.engine_num} becomes {engines * explorers}{gpu_usage}: each of "
            f"the {explorers} explorers opens {engines} (explorer.rollout_model.engine_num)"
        )
    return msgspec.structs.replace(spec, engines=engines)


def unset_variables(spec: ExperimentSpec, environ: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each variable that a service needs and `environ` lacks; explorers on other machines may have
    it.
    """
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
    """Returns the fields common to engines and services; unset lengths and sampling come from `model`."""
    model = experiment.model
    total = declared.max_model_len or lengths.model
    response = declared.max_response_tokens or min(lengths.response, total - 1)
    prompt = declared.max_prompt_tokens or total - response
    if prompt < total < prompt + response:
        # As in Trinity-RFT, where the engine stops at the model's length.
        notes.warn(
            f"{show((*path, 'max_model_len'))} is {total}, and prompt and response take {prompt} + {response}: "
            f"answers end after {total - prompt} tokens"
        )
        response = total - prompt
    if prompt < 1 or response < 1 or prompt + response > total:
        problem = f"is {total}, but prompt and response need {max(prompt, 1)} + {max(response, 1)}"
        notes.wrong((*path, "max_model_len"), problem, "raise it, or lower the lengths")
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
    """Returns the model of a service; of the key, only the name of an environment variable is stored."""
    if not declared.model_name:
        notes.wrong((*path, "model_name"), "is required", "write the service's name of the model", Contradiction)
    address = declared.base_url
    if not address:
        fix = "write the service's address up to /v1, or {env: NAME}"
        notes.wrong((*path, "base_url"), "is required", fix, Contradiction)
    elif isinstance(address, str):
        check_web_address(address, (*path, "base_url"), notes)
    if declared.model_path:
        notes.warn(f"{show((*path, 'model_path'))} has no effect: engine_type is {SERVICE}")
    if declared.enable_thinking is not None:
        problem = f"is {str(declared.enable_thinking).lower()}, but a service applies its own chat template"
        notes.wrong(
            (*path, "enable_thinking"), problem, "configure it at the service, and leave it out here", Unsupported
        )
    check_struct(declared.extra_engine_args, ServiceArgs, (*path, "extra_engine_args"), "a service", notes)
    return msgspec.structs.replace(
        spec,
        model_name=declared.model_name or "",
        base_url=address if isinstance(address, str) else "",
        base_url_env=_variable(address),
        api_key_env=_variable(declared.api_key),
    )


def _warn_idle(declared: AuxiliaryModel, spec: AuxiliarySpec, path: FieldPath, notes: Notes) -> None:
    """Warns of engine fields ignored by the engine in use, or by a service."""
    parallel = () if spec.needs.devices else _PARALLEL
    names = (*parallel, *(() if spec.engine == "vllm" else _VLLM_FIELDS), *(_ENGINE_FIELDS if spec.served else ()))
    fields = type(declared).model_fields
    taker = "a service answers" if spec.served else f"{spec.engine} answers, on one device"
    for name in names:
        if name in declared.model_fields_set and getattr(declared, name) != fields[name].default:
            notes.warn(f"{show((*path, name))} has no effect: {taker}")


def _variable(reference: Any) -> str:
    """Returns the variable named by `{env: NAME}`; empty for plain text, because plain secrets are already refused."""
    return str(reference["env"]) if isinstance(reference, dict) else ""


def _with_engine(
    experiment: Experiment,
    declared: AuxiliaryModel,
    spec: AuxiliarySpec,
    choice: AuxiliaryEngineChoice,
    host: Host,
    path: FieldPath,
    notes: Notes,
) -> AuxiliarySpec:
    """Returns the model with an engine in each explorer."""
    where = (*path, "engine_type")
    if not declared.model_path and spec.engine != "fake":
        fix = f"write the model's folder, or engine_type: {SERVICE} and base_url"
        notes.wrong((*path, "model_path"), "is required", fix, Contradiction)
    for name in ("model_name", "base_url"):
        if getattr(declared, name):
            notes.warn(f"{show((*path, name))} has no effect: only used with engine_type {SERVICE}")
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
    elif host.gpus and spec.engine == "torch" and (counted := auxiliary_gpus(experiment, declared, host)):
        notes.warn(
            f"explorer.auxiliary_models: torch generates on its explorer's GPU, next to the trained model; "
            f"the {counted} GPUs counted for it stay free"
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
    """Refuses vLLM where unavailable, and settings that vLLM would refuse when opened."""
    where = (*path, "engine_type")
    served_elsewhere = f"serve it separately, and write engine_type: {SERVICE}"
    build = vllm_build(host)
    # Packages and GPUs of an uninspected machine are unknown: the launcher of the workers checks later.
    if isinstance(build, NoBuild) and host.seen:
        notes.wrong(where, f"is vllm, and {build.why}", f"{build.fix}; or {served_elsewhere}", Unsupported)
    if choice.gpus and experiment.mode == "colocate":
        problem = "is vllm with dedicated GPUs, but mode colocate uses one device"
        notes.wrong(where, problem, f"{served_elsewhere}; or write mode: both", Unsupported)
    for name in _SIZES_FIXED_AT_1 if choice.gpus else ():
        if (size := getattr(declared, name)) > 1:
            problem = f"is {size}, but an engine of the model is not spread this way"
            notes.wrong((*path, name), problem, "write 1, or raise tensor_parallel_size", Unsupported)


def _with_name(
    declared: AuxiliaryModel, spec: AuxiliarySpec, used_names: list[str], path: FieldPath, notes: Notes
) -> AuxiliarySpec:
    """Returns the model under the written name, which must be unique, or under a name derived from the model."""
    if declared.name is not None:
        if not _NAME.fullmatch(declared.name):
            notes.wrong((*path, "name"), f"is {declared.name!r}", "use letters, digits, dots and dashes", WrongValue)
        if declared.name in used_names:
            notes.wrong((*path, "name"), f"{declared.name!r} is used twice", "choose unique names")
        return msgspec.structs.replace(spec, name=declared.name)
    base = _UNNAMED.sub("-", PurePath(declared.model_name or declared.model_path or spec.engine).name).strip(".-")[:48]
    base = base or "model"
    number = next(n for n in range(1, len(used_names) + 2) if (base if n == 1 else f"{base}-{n}") not in used_names)
    return msgspec.structs.replace(spec, name=base if number == 1 else f"{base}-{number}")
