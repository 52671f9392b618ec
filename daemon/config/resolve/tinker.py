"""Section `model.tinker`: a service as trainer and sampler, and settings without meaning for the service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported
from rftd.daemon.config.resolve.web_addresses import check_web_address
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_section
from rftd.streams.spec.spec import StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.devices.engine_build import how_to_install
from rftd.workers.devices.host import Host
from rftd.workers.engines.tinker.rollout.arguments import undrawable
from rftd.workers.engines.tinker.trainer.arguments import OPTIMIZERS
from rftd.workers.weights.service import SERVICE

TINKER: Final = "tinker"
"""Name of both engines, of the required package, and of the extra."""
_AT: Final[FieldPath] = ("model", "tinker")
"""Section of the service."""
_HOW: Final = how_to_install(TINKER)
"""Advice for the missing package."""


def as_tinker(experiment: Experiment, host: Host, notes: Notes) -> Experiment:
    """Returns the experiment adapted to the service if `model.tinker` is enabled; otherwise unchanged.

    The service's engines, arguments and weight channel replace those named in the file.
    """
    section = experiment.model.tinker
    if not section.enable:
        _refuse_alone(experiment, notes)
        return experiment
    if host.seen and TINKER not in host.packages:
        notes.wrong((*_AT, "enable"), "is true, but the tinker package is not installed", _HOW, Unsupported)
    if experiment.deterministic:
        problem = "is true, but the Tinker service does not guarantee identical bits"
        notes.wrong(("deterministic",), problem, "write false, or train with torch", Unsupported)
    if experiment.mode == "colocate":
        notes.wrong(("mode",), "is colocate, but Tinker needs no device here", "write mode: both", Contradiction)
    if experiment.model.external_model.enable:
        problem = "is true, and so is model.tinker.enable: one service answers"
        notes.wrong(("model", "external_model", "enable"), problem, "write false for one of the two", Contradiction)
    if experiment.model.lora_configs:
        notes.warn("model.lora_configs has no effect: the adapter is configured in model.tinker")
    if section.base_url:
        check_web_address(section.base_url, (*_AT, "base_url"), notes)
    if not (section.train_mlp or section.train_attn or section.train_unembed):
        problem = "is false, and so are train_mlp and train_attn: nothing is trained"
        notes.wrong((*_AT, "train_unembed"), problem, "write true for one of the three", Contradiction)
    base_url = {"base_url": section.base_url} if section.base_url else {}
    trained: dict[str, Any] = {
        "base_model": section.base_model or _named(experiment, notes),
        "rank": section.rank,
        "seed": section.seed,
        "train_mlp": section.train_mlp,
        "train_attn": section.train_attn,
        "train_unembed": section.train_unembed,
        **base_url,
    }
    _warn_replaced(experiment, notes)
    trainer = {
        "trainer_type": TINKER,
        "engine_args": {**_threads(experiment.trainer.engine_args), **trained},
        # There are no local weights to write for transformers.
        "save_hf_checkpoint": "never",
    }
    rollout_model = {
        "engine_type": TINKER,
        "extra_engine_args": {**_threads(experiment.explorer.rollout_model.extra_engine_args), **base_url},
    }
    explorer = {"rollout_model": experiment.explorer.rollout_model.model_copy(update=rollout_model)}
    return experiment.model_copy(
        update={
            "model": experiment.model.model_copy(update={"lora_configs": None}),
            "trainer": experiment.trainer.model_copy(update=trainer),
            "explorer": experiment.explorer.model_copy(update=explorer),
            "synchronizer": as_section(experiment.synchronizer).model_copy(update={"sync_method": SERVICE}),
        }
    )


def _refuse_alone(experiment: Experiment, notes: Notes) -> None:
    """Refuses one of the engines, or the channel, without the others: weights could not be transferred."""
    fix = "set model.tinker.enable: true, and leave this out"
    for path, engine in (
        (("trainer", "trainer_type"), experiment.trainer.trainer_type),
        (("explorer", "rollout_model", "engine_type"), experiment.explorer.rollout_model.engine_type),
    ):
        if engine == TINKER:
            notes.wrong(path, "is tinker, but model.tinker is not enabled", fix, Contradiction)


def _named(experiment: Experiment, notes: Notes) -> str:
    """Returns the service's name of the model: the guide's default is the model's path, a folder here."""
    parts = PurePosixPath(experiment.model.model_path).parts[-2:]
    name = "/".join(folder_name for folder_name in parts if folder_name != "/")
    if name:
        notes.warn(f"model.tinker.base_model is not set: using {name}, the end of model.model_path")
    else:
        notes.wrong((*_AT, "base_model"), "is not a model of the service", "write its name, such as Qwen/Qwen3-8B")
    return name


def _threads(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments accepted by every engine."""
    return {name: argument for name, argument in arguments.items() if name in ("threads", "dtype")}


def _warn_replaced(experiment: Experiment, notes: Notes) -> None:
    """Warns of settings that have no effect with the service."""
    method = experiment.synchronizer.sync_method
    if "sync_method" in as_section(experiment.synchronizer).model_fields_set and method not in (SERVICE, "checkpoint"):
        notes.warn(f"synchronizer.sync_method {method} has no effect: weights stay at the service")
    trainer = experiment.trainer
    if "save_hf_checkpoint" in trainer.model_fields_set and trainer.save_hf_checkpoint != "never":
        notes.warn(
            f"trainer.save_hf_checkpoint {trainer.save_hf_checkpoint} has no effect: the weights are stored at the "
            "service; download them with its command line"
        )
    for path, arguments in (
        ("trainer.engine_args", trainer.engine_args),
        ("explorer.rollout_model.extra_engine_args", experiment.explorer.rollout_model.extra_engine_args),
    ):
        if names := sorted(arguments.keys() - {"threads", "dtype"}):
            notes.warn(f"{path}: {', '.join(names)} has no effect: the service is configured in model.tinker")


def check_service(stage: StageSpec, notes: Notes) -> None:
    """Refuses settings unsupported by the service: other optimizers, and unavailable sampling settings."""
    kind = stage.algorithm.optimizer.optimizer_type
    if stage.trainer.engine == TINKER and kind not in OPTIMIZERS:
        problem = f"is {kind}, but the Tinker service only has AdamW"
        notes.wrong(("algorithm", "optimizer", "optimizer_type"), problem, "write adam", Unsupported)
    if stage.rollout.engine != TINKER:
        return
    tasksets = tasksets_of(stage)
    located_tasksets: list[tuple[FieldPath, TasksetSpec]] = [
        (("tasksets", number), taskset_spec) for number, taskset_spec in enumerate(tasksets)
    ]
    if len(tasksets) == 1:
        located_tasksets = [(("taskset",), tasksets[0])]
    located_tasksets += [(("eval_tasksets", number), taskset_spec) for number, taskset_spec in enumerate(stage.evals)]
    for path, taskset in located_tasksets:
        for name in undrawable(taskset.sampling):
            problem = f"is not supported by the Tinker service: {name}"
            where = ("buffer", "explorer_input", *path, "rollout_args", name)
            notes.wrong(where, problem, "leave it out, or generate with torch", Unsupported)
