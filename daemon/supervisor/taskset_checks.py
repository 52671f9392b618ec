"""Checks of a taskset against files and third parties: arguments of its workflow and reward, tokens that it biases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rftd.daemon.config.field_path import FieldPath, child, show
from rftd.daemon.config.issue import Issue
from rftd.daemon.config.resolve.experiment import placed
from rftd.ops.errors import ConfigError, DataError, RftdError
from rftd.ops.plugins import Plugins
from rftd.streams.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.workers.devices.device_memory import number_in, settings_of
from rftd.workers.rollout.rewards.registry import REWARDS
from rftd.workers.rollout.workflows.registry import WORKFLOWS

_INPUT: FieldPath = ("buffer", "explorer_input")


def check_tasksets(spec: ExperimentSpec) -> None:
    """Raises ConfigError or DataError, which names the field, for what a worker would refuse once it opens it."""
    for stage in spec.stages:
        for taskset, path in _tasksets(stage):
            try:
                _check_arguments(WORKFLOWS, taskset.workflow, taskset.workflow_args, "workflow_args")
                _check_arguments(REWARDS, _reward(taskset), taskset.reward_args, "reward_fn_args")
                _check_biases(taskset, stage)
            except (ConfigError, DataError) as error:
                error.field = _field(spec, stage, path, error.field)
                raise


def _tasksets(stage: StageSpec) -> Iterator[tuple[TasksetSpec, FieldPath]]:
    """Each taskset, and where the file has it."""
    if stage.taskset is not None:
        yield stage.taskset, (*_INPUT, "taskset")
    for number, taskset in enumerate(stage.evals):
        yield taskset, (*_INPUT, "eval_tasksets", number)


def _reward(taskset: TasksetSpec) -> str | None:
    """The reward that the taskset's arguments are for: the one that it names, else its workflow's own."""
    if taskset.reward is not None:
        return taskset.reward
    try:
        return getattr(WORKFLOWS.load(taskset.workflow), "default_reward", None)
    except ConfigError:  # the same error is raised, with more to say, by whoever opens the taskset
        return None


def _check_arguments(plugins: Plugins[Any], name: str | None, arguments: Mapping[str, Any], field: str) -> None:
    if name is None:
        return
    try:
        plugins.load(name)
    except ConfigError:  # its worker may have what is not here, and says so if not
        return
    try:
        plugins.check_arguments(name, arguments)
    except RftdError as error:
        error.field = f"{field}.{error.field}" if error.field in arguments else field
        raise


def _check_biases(taskset: TasksetSpec, stage: StageSpec) -> None:
    """Holds token ids against the model's vocabulary, where config.json names its size."""
    if stage.rollout.engine == "fake":
        return
    vocabulary = number_in(settings_of(Path(stage.model.path)), "vocab_size")
    for token, _ in taskset.sampling.logit_bias:
        if vocabulary and token >= vocabulary:
            raise ConfigError(
                f"token {token} is beyond the vocabulary of {stage.model.path!r}, which has {vocabulary} tokens",
                field=f"rollout_args.logit_bias.{token}",
                fix=f"name token ids of this model, 0 to {vocabulary - 1}",
            )


def _field(spec: ExperimentSpec, stage: StageSpec, path: FieldPath, below: str | None) -> str:
    """The field as the file has it: of the stage that sets it, else of the global sections."""
    stages = spec.config.get("stages") or []
    number = next((i for i, each in enumerate(stages) if each.get("stage_name") == stage.name), None)
    prefix: FieldPath = () if number is None else ("stages", number)
    if path[-1] == "taskset" and _of_list(spec.config, prefix):
        path = (*path[:-1], "tasksets", 0)
    parts = below.split(".") if below else []
    return show(placed(Issue((*path, *parts), ""), prefix, spec.config).path)


def _of_list(config: Mapping[str, Any], prefix: FieldPath) -> bool:
    """True if the training taskset stands in `tasksets`."""
    for start in (prefix, ()):
        node: Any = config
        for part in (*start, *_INPUT):
            node = child(node, part)
        if isinstance(node, dict) and ("taskset" in node or "tasksets" in node):
            return "taskset" not in node
    return False
