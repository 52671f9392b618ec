"""Section `model.tinker`: a service as trainer and sampler, and what of a file means nothing to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, Notes, Unsupported, WrongValue
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
"""The name of both engines, of the package that they need, and of its extra."""
_AT: Final[FieldPath] = ("model", "tinker")
_HOW: Final = how_to_install(TINKER)


def as_tinker(experiment: Experiment, host: Host, notes: Notes) -> Experiment:
    """The experiment as the service runs it, if `model.tinker` is enabled; else as it is.

    Its engines, their arguments and the channel of its weights take the places of those that the file names.
    """
    given = experiment.model.tinker
    if not given.enable:
        _refuse_alone(experiment, notes)
        return experiment
    if host.seen and TINKER not in host.packages:
        notes.wrong((*_AT, "enable"), "is true, and the tinker package is not installed", _HOW, Unsupported)
    if experiment.deterministic:
        what = "is true, and the Tinker service promises no equal bits"
        notes.wrong(("deterministic",), what, "write false, or train with torch", Unsupported)
    if experiment.mode == "colocate":
        notes.wrong(("mode",), "is colocate, and Tinker needs no device here", "write mode: both", Contradiction)
    if experiment.model.external_model.enable:
        what = "is true, and so is model.tinker.enable: one service answers"
        notes.wrong(("model", "external_model", "enable"), what, "write false for one of the two", Contradiction)
    if experiment.model.lora_configs:
        notes.warn("model.lora_configs has no effect: model.tinker says what adapter the service trains")
    if given.base_url and not given.base_url.startswith(("http://", "https://")):
        fix = "begin it with http:// or https://"
        notes.wrong((*_AT, "base_url"), f"is {given.base_url!r}, and no http address", fix, WrongValue)
    if not (given.train_mlp or given.train_attn or given.train_unembed):
        what = "is false, and so are train_mlp and train_attn: nothing is trained"
        notes.wrong((*_AT, "train_unembed"), what, "write true for one of the three", Contradiction)
    base_url = {"base_url": given.base_url} if given.base_url else {}
    trained: dict[str, Any] = {
        "base_model": given.base_model or _named(experiment, notes),
        "rank": given.rank,
        "seed": given.seed,
        "train_mlp": given.train_mlp,
        "train_attn": given.train_attn,
        "train_unembed": given.train_unembed,
        **base_url,
    }
    _warn_replaced(experiment, notes)
    trainer = {
        "trainer_type": TINKER,
        "engine_args": {**_threads(experiment.trainer.engine_args), **trained},
        # There are no weights here to write for transformers.
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
    """Refuses one of the engines, or the channel, without the others: weights would not get from one to the other."""
    fix = "set model.tinker.enable: true, and leave this out"
    for path, value in (
        (("trainer", "trainer_type"), experiment.trainer.trainer_type),
        (("explorer", "rollout_model", "engine_type"), experiment.explorer.rollout_model.engine_type),
    ):
        if value == TINKER:
            notes.wrong(path, "is tinker, and model.tinker is not enabled", fix, Contradiction)


def _named(experiment: Experiment, notes: Notes) -> str:
    """The model's name at the service: the guide's default is the model's path, which is a folder here."""
    parts = PurePosixPath(experiment.model.model_path).parts[-2:]
    name = "/".join(part for part in parts if part != "/")
    if name:
        notes.warn(f"model.tinker.base_model is not set: {name}, by the end of model.model_path")
    else:
        notes.wrong((*_AT, "base_model"), "names no model of the service", "write its name, such as Qwen/Qwen3-8B")
    return name


def _threads(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that every engine takes."""
    return {name: value for name, value in arguments.items() if name in ("threads", "dtype")}


def _warn_replaced(experiment: Experiment, notes: Notes) -> None:
    method = experiment.synchronizer.sync_method
    if "sync_method" in as_section(experiment.synchronizer).model_fields_set and method not in (SERVICE, "checkpoint"):
        notes.warn(f"synchronizer.sync_method {method} has no effect: weights stay at the service")
    trainer = experiment.trainer
    if "save_hf_checkpoint" in trainer.model_fields_set and trainer.save_hf_checkpoint != "never":
        notes.warn(
            f"trainer.save_hf_checkpoint {trainer.save_hf_checkpoint} has no effect: the weights lie at the service, "
            "which gives them by its own command line"
        )
    for path, given in (
        ("trainer.engine_args", trainer.engine_args),
        ("explorer.rollout_model.extra_engine_args", experiment.explorer.rollout_model.extra_engine_args),
    ):
        if names := sorted(given.keys() - {"threads", "dtype"}):
            notes.warn(f"{path}: {', '.join(names)} has no effect: model.tinker says what the service is told")


def check_service(stage: StageSpec, notes: Notes) -> None:
    """Refuses what the service cannot do: an optimizer that it does not have, and settings that it cannot draw with."""
    kind = stage.algorithm.optimizer.optimizer_type
    if stage.trainer.engine == TINKER and kind not in OPTIMIZERS:
        what = f"is {kind}, and the Tinker service has AdamW"
        notes.wrong(("algorithm", "optimizer", "optimizer_type"), what, "write adam", Unsupported)
    if stage.rollout.engine != TINKER:
        return
    own = tasksets_of(stage)
    places: list[tuple[FieldPath, TasksetSpec]] = [(("tasksets", number), each) for number, each in enumerate(own)]
    if len(own) == 1:
        places = [(("taskset",), own[0])]
    places += [(("eval_tasksets", number), each) for number, each in enumerate(stage.evals)]
    for path, taskset in places:
        for name in undrawable(taskset.sampling):
            what = f"is not what the Tinker service can draw with: {name}"
            where = ("buffer", "explorer_input", *path, "rollout_args", name)
            notes.wrong(where, what, "leave it out, or generate with torch", Unsupported)
