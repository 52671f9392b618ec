"""`mode: bench`: held-out tasksets are answered once, by a model folder or by a service, and nothing is trained."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import Contradiction, Notes
from rftd.daemon.config.schema.algorithm import Algorithm
from rftd.daemon.config.schema.buffer import ExplorerInput
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_section
from rftd.daemon.config.schema.trainer import Trainer
from rftd.streams.spec.auxiliary import SERVICE
from rftd.streams.spec.spec import PolicySpec, StageSpec
from rftd.streams.spec.synchronizer import Synchronizer

BENCH: Final = "bench"
_SERVICE: Final[FieldPath] = ("model", "external_model")
_PACED: Final = {"sync_method": "checkpoint", "sync_style": "fully_async"}
_SERVICE_LEN: Final = 2**20
"""The length of a model behind a service, of which nobody here knows how long a prompt it takes: it says so itself."""
_PROGRAM: Final = "agent_program_workflow"


def as_benched(experiment: Experiment, notes: Notes) -> Experiment:
    """The experiment with what measuring needs of it: whatever it would train by is left out."""
    if not experiment.buffer.explorer_input.eval_tasksets:
        what = "are required: mode bench answers them, and nothing else"
        notes.wrong(("buffer", "explorer_input", "eval_tasksets"), what, "name the tasksets to answer", Contradiction)
    # The algorithm of most needs is the guide's default, which would open a critic.
    update: dict[str, Any] = {
        "algorithm": Algorithm(algorithm_type="grpo"),
        "synchronizer": as_section(experiment.synchronizer).model_copy(update=_PACED),
        "policy": None,
    }
    if of_service(experiment):
        longest = experiment.model.max_response_tokens
        if longest is None:
            what = "is required: it is the longest answer that the service is asked for"
            notes.wrong(("model", "max_response_tokens"), what, "write a number of tokens", Contradiction)
        written = experiment.model.model_fields_set
        if idle := [f"model.{name}" for name in ("max_model_len", "max_prompt_tokens") if name in written]:
            notes.warn(f"{' and '.join(idle)} bound no prompt: the service says itself how long a prompt it takes")
        lengths = {"max_model_len": _SERVICE_LEN, "max_prompt_tokens": None, "max_response_tokens": longest or 1}
        # Nothing is there to be opened: a trainer that only announces version 0 will do.
        update["trainer"] = Trainer(trainer_type="fake")
        update["model"] = experiment.model.model_copy(update=lengths)
    # model_copy does not validate: the values are ours.
    return experiment.model_copy(update=update)


def of_service(experiment: Experiment) -> bool:
    """True if a service answers."""
    return experiment.model.external_model.enable or experiment.explorer.rollout_model.engine_type == SERVICE


def check_external(experiment: Experiment, notes: Notes) -> None:
    """Refuses a service where something would be trained on it, and one of which the file says too little."""
    given = experiment.model.external_model
    if not given.enable:
        fix = "write model.external_model with enable: true and model_name, or another engine_type"
        what = f"is {SERVICE}, and model.external_model does not say which service"
        notes.wrong(("explorer", "rollout_model", "engine_type"), what, fix, Contradiction)
    elif (written := experiment.explorer.rollout_model.engine_type) != SERVICE and (
        "engine_type" in experiment.explorer.rollout_model.model_fields_set
    ):
        what = f"is {written}, and model.external_model is answered by a service"
        notes.wrong(("explorer", "rollout_model", "engine_type"), what, f"write {SERVICE}, or leave it out")
    if experiment.mode != BENCH:
        what = (
            f"is true, and mode is {experiment.mode}: the answers of a service have no log-probabilities of the model "
            "that would be trained, and its weights are out of reach"
        )
        notes.wrong((*_SERVICE, "enable"), what, "write mode: bench, or enable: false", Contradiction)
    if not given.model_name:
        notes.wrong((*_SERVICE, "model_name"), "is required", "write what the service calls the model", Contradiction)
    if not given.base_url_env:
        fix = "name the environment variable that holds the service's address, up to /v1"
        notes.wrong((*_SERVICE, "base_url_env"), "is required", fix, Contradiction)
    _check_tasksets(experiment.buffer.explorer_input, notes)


def _check_tasksets(given: ExplorerInput, notes: Notes) -> None:
    """Refuses what cannot be asked in messages."""
    for index, taskset in enumerate(given.eval_tasksets):
        path: FieldPath = ("buffer", "explorer_input", "eval_tasksets", index)
        named = taskset.default_workflow_type or given.default_eval_workflow_type or given.default_workflow_type
        if named == _PROGRAM:
            what = f"is {named}, whose programs ask the endpoint of an engine of ours"
            fix = "use a workflow that calls model.chat"
            notes.wrong((*path, "default_workflow_type"), what, fix, Contradiction)
        if taskset.format.prompt_type == "raw":
            what = "is raw, and a service is asked in messages"
            notes.wrong((*path, "format", "prompt_type"), what, "write messages or plaintext", Contradiction)
        if taskset.format.reply_prefix:
            what = "begins answers, and a service begins its own"
            notes.wrong((*path, "format", "reply_prefix"), what, "leave it out", Contradiction)


def with_service(experiment: Experiment, args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the engine, with the service. Of its address and key only names of variables are kept."""
    given = experiment.model.external_model
    service = {
        "model_name": given.model_name or "",
        "base_url_env": given.base_url_env,
        "api_key_env": given.api_key_env,
    }
    return {**args, **service}


def benched(stage: StageSpec) -> StageSpec:
    """The stage with its evaluations alone, of the weights that it begins with."""
    return msgspec.structs.replace(
        stage,
        kind="explore",
        total_steps=0,
        total_epochs=0,
        collect_groups=0,
        taskset=None,
        dataset=None,
        expert_rows=0,
        eval_interval=0,
        eval_on_startup=True,
        policy=PolicySpec(),
        synchronizer=Synchronizer(sync_method="checkpoint", sync_style="fully_async"),
    )
