"""`mode: bench`: held-out tasksets are answered once, by a model folder or by a service, without training."""

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
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.sections import Synchronizer
from rftd.streams.spec.spec import PolicySpec, StageSpec
from rftd.workers.workflows.agentscope.names import AGENTSCOPE_WORKFLOWS

BENCH: Final = "bench"
"""Name of the mode."""
_SERVICE: Final[FieldPath] = ("model", "external_model")
"""Section of the service."""
_PACED: Final = {"sync_method": "checkpoint", "sync_style": "fully_async"}
"""Synchronisation settings of a run without training."""
_SERVICE_LEN: Final = 2**20
"""Assumed length of a model behind a service: the real limit is known only to the service, which reports an excess."""
_PROGRAMS: Final = frozenset({"agent_program_workflow", "agent_command_workflow"}) | AGENTSCOPE_WORKFLOWS
"""Workflows that run programs."""


def as_benched(experiment: Experiment, notes: Notes) -> Experiment:
    """Returns the experiment of `mode: bench`, with evaluations only and without training settings."""
    if not experiment.buffer.explorer_input.eval_tasksets:
        problem = "are required: mode bench answers only these"
        notes.wrong(
            ("buffer", "explorer_input", "eval_tasksets"), problem, "name the tasksets to answer", Contradiction
        )
    # The guide's default algorithm, ppo, would open a critic.
    update: dict[str, Any] = {
        "algorithm": Algorithm(algorithm_type="grpo"),
        "synchronizer": as_section(experiment.synchronizer).model_copy(update=_PACED),
        "policy": None,
    }
    if answers_by_service(experiment):
        longest = experiment.model.max_response_tokens
        if longest is None:
            problem = "is required: the service needs an upper bound of the answer's length"
            notes.wrong(("model", "max_response_tokens"), problem, "write a number of tokens", Contradiction)
        set_fields = experiment.model.model_fields_set
        if idle := [f"model.{name}" for name in ("max_model_len", "max_prompt_tokens") if name in set_fields]:
            notes.warn(f"{' and '.join(idle)} do not limit prompts: the service has its own limit")
        lengths = {"max_model_len": _SERVICE_LEN, "max_prompt_tokens": None, "max_response_tokens": longest or 1}
        # There are no weights to open: a trainer announcing only version 0 suffices.
        update["trainer"] = Trainer(trainer_type="fake")
        update["model"] = experiment.model.model_copy(update=lengths)
    # model_copy does not validate: the values are constants of this module.
    return experiment.model_copy(update=update)


def answers_by_service(experiment: Experiment) -> bool:
    """True if a service generates the answers, by `model.external_model` or by the rollout engine's type."""
    return experiment.model.external_model.enable or experiment.explorer.rollout_model.engine_type == SERVICE


def check_external(experiment: Experiment, notes: Notes) -> None:
    """Refuses a service combined with training, and an incomplete description of a service."""
    service = experiment.model.external_model
    if not service.enable:
        fix = "write model.external_model with enable: true and model_name, or another engine_type"
        problem = f"is {SERVICE}, but model.external_model does not name a service"
        notes.wrong(("explorer", "rollout_model", "engine_type"), problem, fix, Contradiction)
    elif (engine_type := experiment.explorer.rollout_model.engine_type) != SERVICE and (
        "engine_type" in experiment.explorer.rollout_model.model_fields_set
    ):
        problem = f"is {engine_type}, but model.external_model is enabled"
        notes.wrong(("explorer", "rollout_model", "engine_type"), problem, f"write {SERVICE}, or leave it out")
    if experiment.mode != BENCH:
        problem = (
            f"is true, but mode is {experiment.mode}: answers of a service have no log-probabilities of the "
            "trained model, and its weights are not accessible"
        )
        notes.wrong((*_SERVICE, "enable"), problem, "write mode: bench, or enable: false", Contradiction)
    if not service.model_name:
        notes.wrong((*_SERVICE, "model_name"), "is required", "write the service's name of the model", Contradiction)
    if not service.base_url_env:
        fix = "name the environment variable with the service's URL, up to /v1"
        notes.wrong((*_SERVICE, "base_url_env"), "is required", fix, Contradiction)
    _check_tasksets(experiment.buffer.explorer_input, notes)


def _check_tasksets(explorer_input: ExplorerInput, notes: Notes) -> None:
    """Refuses tasksets that cannot be sent as chat messages."""
    for index, taskset in enumerate(explorer_input.eval_tasksets):
        path: FieldPath = ("buffer", "explorer_input", "eval_tasksets", index)
        named = (
            taskset.default_workflow_type
            or explorer_input.default_eval_workflow_type
            or explorer_input.default_workflow_type
        )
        if named in _PROGRAMS:
            problem = f"is {named}, whose programs need the endpoint of a built-in engine"
            fix = "use a workflow that calls model.chat"
            notes.wrong((*path, "default_workflow_type"), problem, fix, Contradiction)
        if taskset.format.prompt_type == "raw":
            problem = "is raw, but a service accepts only messages"
            notes.wrong((*path, "format", "prompt_type"), problem, "write messages or plaintext", Contradiction)
        if taskset.format.reply_prefix:
            problem = "begins answers, and a service begins its own"
            notes.wrong((*path, "format", "reply_prefix"), problem, "leave it out", Contradiction)


def with_service(experiment: Experiment, args: dict[str, Any]) -> dict[str, Any]:
    """Returns the engine's arguments with those of the service; of address and key, only variable names are stored."""
    external = experiment.model.external_model
    service = {
        "model_name": external.model_name or "",
        "base_url_env": external.base_url_env,
        "api_key_env": external.api_key_env,
    }
    return {**args, **service}


def as_one_evaluation(stage: StageSpec) -> StageSpec:
    """Returns the stage reduced to one evaluation of the initial weights."""
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
