"""`effective_config` turns a specification into a complete experiment file, with a section of derived figures."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from math import ceil
from typing import Any, Final

import msgspec

from rftd.daemon.config.effective.arguments import acting_fields, with_defaults
from rftd.daemon.config.effective.learning import algorithm_section, policy_section, replay_buffer, trainer_section
from rftd.daemon.config.effective.rollouts import explorer_section, model_section
from rftd.daemon.config.resolve.pipeline import SERVICE_CONFIG
from rftd.daemon.config.resolve.rows import VARIABLE
from rftd.daemon.config.resolve.stages import stage_trees
from rftd.daemon.config.schema.experiment import Experiment
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.explorer_devices import explorer_devices
from rftd.streams.spec.schedule import explorer_interval, needed_staleness, trainer_interval
from rftd.streams.spec.sections import Budgets
from rftd.streams.spec.spec import ExperimentSpec, SamplingSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.streams.spec.task_pipeline import TaskPipelineSpec
from rftd.workers.control.selectors.registry import SELECTORS, draws
from rftd.workers.learning.algorithms.advantages.registry import ADVANTAGES
from rftd.workers.pipelines.registry import OPERATORS, TASK_OPERATORS
from rftd.workers.workflows.environments.address import names_environment
from rftd.workers.workflows.registry import WORKFLOWS, own_reward
from rftd.workers.workflows.rewards.registry import REWARDS

DERIVED: Final = "derived"
"""Name of the section with figures derived from the other sections; without effect in a file."""
_ORDER: Final = tuple(Experiment.model_fields)
"""Sections in the order of the guide."""


def derived_section(spec: ExperimentSpec) -> dict[str, Any]:
    """Returns figures derived from a specification: folders, and for each stage devices, amounts, schedule and
    staleness.
    """
    return {
        "checkpoint_job_dir": spec.job_dir,
        "stages": {stage.name: _derived_stage(spec, stage) for stage in spec.stages},
    }


def _derived_stage(spec: ExperimentSpec, stage: StageSpec) -> dict[str, Any]:
    """Returns the figures derived from one stage."""
    derived: dict[str, Any] = {
        "kind": {"train": "trains on rows", "both": "explores and trains", "explore": "explores"}[stage.kind],
        "checkpoints": f"{stage.folder}/global_step_N",
        "steps": stage.total_steps or None,
        "gpus": _gpus(spec, stage),
        "batch": _batch(stage),
    }
    if stage.kind != "train":
        derived["sync"] = {
            "method": stage.synchronizer.sync_method,
            "style": stage.synchronizer.sync_style,
            "explorer_interval_steps": explorer_interval(stage.synchronizer),
            "trainer_interval_steps": trainer_interval(stage.synchronizer) or None,
        }
        derived["eval_interval_steps"] = stage.eval_interval if stage.evals else None
    if stage.kind == "both":
        derived["staleness"] = {
            "bound_versions": stage.policy.max_staleness_versions if stage.policy.bounded else None,
            "least_bound_versions": needed_staleness(stage.synchronizer),
            "inflight_batches": stage.policy.max_inflight_batches,
            "capacity_experiences": stage.policy.capacity or None,
        }
    return derived


def _gpus(spec: ExperimentSpec, stage: StageSpec) -> dict[str, Any]:
    """Returns the guide's split: engines first, the remainder for the trainer. 0: a worker uses the machine's visible
    GPUs.
    """
    cluster = spec.config.get("cluster") or {}
    nodes = cluster.get("node_num") or 0
    per_node = cluster.get("gpu_per_node") or 0
    explorers = stage.rollout.explorers if stage.kind != "train" else 0
    per_explorer = explorer_devices((stage,)) if explorers else 0
    trainer = stage.trainer.devices if stage.kind != "explore" else 0
    if stage.turns:
        # All GPUs alternate between the two sides: neither side owns any.
        return {"total_gpu_num": nodes * per_node or None, "explorer_num": explorers, "taken_in_turns": True}
    split: dict[str, Any] = {
        "total_gpu_num": nodes * per_node or None,
        "explorer_num": explorers,
        "gpus_per_explorer": per_explorer,
        "rollout_gpu_num": explorers * per_explorer,
        "trainer_gpu_num": trainer,
    }
    if trainer and per_node:
        split["trainer_node_num"] = ceil(trainer / per_node)
        split["trainer_gpu_num_per_node"] = min(trainer, per_node)
    return split


def _batch(stage: StageSpec) -> dict[str, Any]:
    """Returns the sizes of an explore step and of a training step."""
    sizes: dict[str, Any] = {}
    if stage.kind != "train":
        sizes["tasks_per_explore_step"] = stage.batch_size
        sizes["rollouts_per_explore_step"] = stage.batch_size * stage.algorithm.repeat_times
    if stage.kind == "explore":
        tasks = stage.collect_groups
        sizes["tasks"] = tasks if 0 < tasks < LAST_INDEX else None
        return sizes
    updates = stage.trainer.updates
    item_count = stage.train_batch_size
    return {
        **sizes,
        "items_per_training_step": item_count,
        "experiences_per_training_step": stage.experiences_per_step,
        "rows_per_training_step": stage.expert_rows if stage.kind == "both" else item_count,
        "optimizer_steps_per_training_step": updates.epochs
        * ceil(item_count / (updates.mini_batch_items or max(item_count, 1))),
    }


def effective_config(spec: ExperimentSpec) -> dict[str, Any]:
    """Returns the experiment in the structure of the configuration guide, with every effective default and argument.

    The last section is `derived`. Read as a file, the config resolves to the same specification, except for arguments
    written out at their defaults. Fields without effect are left out.
    """
    trees = [stage.tree for stage in stage_trees(spec.config)]
    # A specification made without a file, for example by a test, has no trees.
    submitted_trees = trees if len(trees) == len(spec.stages) else [{} for _ in spec.stages]
    single = len(spec.stages) == 1 and spec.stages[0].folder == spec.job_dir
    first = next((stage for stage in spec.stages if stage.kind == "both"), spec.stages[0])
    exploring = [stage for stage in spec.stages if stage.kind != "train"]
    sections = [_stage(spec, stage, tree) for stage, tree in zip(spec.stages, submitted_trees, strict=True)]
    config = _head(spec)
    if sources := {file: text for stage in spec.stages for file, text in stage.sources.items()}:
        config["sources"] = sources
    if spec.limits != Budgets():
        config["limits"] = acting_fields(spec.limits)
    if service := service_section(spec):
        config["service"] = service
    config["model"] = model_section(first, spec.config.get("model") or {})
    if exploring:
        config["synchronizer"] = acting_fields((first if first in exploring else exploring[0]).synchronizer)
    if single:
        config |= sections[0]
    else:
        config["stages"] = [
            {"stage_name": stage.name, **section} for stage, section in zip(spec.stages, sections, strict=True)
        ]
    config[DERIVED] = derived_section(spec)
    return dict(sorted(config.items(), key=lambda pair: _ORDER.index(pair[0])))


def _head(spec: ExperimentSpec) -> dict[str, Any]:
    """Returns the fields outside the stages."""
    parts = [folder_name for folder_name in (spec.project, spec.group, spec.name) if folder_name]
    below = os.path.join("", *parts)
    # An imported experiment may have any folder.
    submitted = spec.config.get("checkpoint_root_dir", "")
    root = spec.job_dir.removesuffix(f"/{below}") or "/" if spec.job_dir.endswith(f"/{below}") else submitted
    config: dict[str, Any] = {
        "project": spec.project,
        "group": spec.group,
        "name": spec.name,
        "checkpoint_root_dir": root,
        "continue_from_checkpoint": spec.config.get("continue_from_checkpoint", True),
        "deterministic": spec.deterministic,
        "seed": spec.seed,
        "priority": spec.priority,
        "labels": dict(spec.labels),
        "ray_namespace": spec.cluster.namespace,
        "monitor": {**_trackers(spec), "enable_ray_timeline": spec.cluster.timeline},
        "log": {"level": spec.log_level, "group_by_node": spec.cluster.logs_by_node},
    }
    submitted = spec.config.get("cluster")
    # A stage training on rows has no explorers, and only explorers use a cluster's counts.
    if submitted or any(stage.kind != "train" for stage in spec.stages):
        counts = {name: (submitted or {}).get(name) or 0 for name in ("node_num", "gpu_per_node")}
        config["cluster"] = {"ray_address": spec.cluster.address or "auto", **counts}
    return config


def _trackers(spec: ExperimentSpec) -> dict[str, Any]:
    """Returns the fields of `monitor` defined by the trackers."""
    if not spec.trackers:
        return {"monitor_type": None}
    first, *further_trackers = spec.trackers
    arguments: dict[str, Any] = {}
    for tracker in spec.trackers:
        arguments |= tracker.args | {name: {"env": variable} for name, variable in tracker.variables.items()}
    return {
        "monitor_type": first.kind,
        "also": [tracker.kind for tracker in further_trackers],
        "single_run": first.single_run,
        "samples": first.samples,
        "sample_interval": first.sample_interval,
        "monitor_args": arguments or None,
    }


def _stage(spec: ExperimentSpec, stage: StageSpec, submitted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections of one stage."""
    sections: dict[str, Any] = {
        "mode": mode_of(stage, spec.half),
        "algorithm": algorithm_section(stage.algorithm),
        "buffer": buffer_section(stage),
    }
    if stage.kind != "train":
        sections["explorer"] = explorer_section(stage, submitted.get("explorer") or {})
    if stage.pipeline:
        operators = [
            {
                "name": operator.name,
                "args": {
                    name: argument
                    for name, argument in with_defaults(OPERATORS, operator.name, operator.args).items()
                    if name != SERVICE_CONFIG
                },
            }
            for operator in stage.pipeline
        ]
        sections["data_processor"] = {"experience_pipeline": {"operators": operators}}
    if stage.task_pipeline is not None:
        processor: dict[str, Any] = sections.setdefault("data_processor", {})
        processor["task_pipeline"] = _task_pipeline(stage.task_pipeline)
    if stage.rollout.engine != SERVICE:  # a service answers with weights not available here
        sections["trainer"] = trainer_section(stage)
    if stage.kind == "both" and (policy := policy_section(stage)) is not None:
        sections["policy"] = policy
    return sections


def _task_pipeline(pipeline: TaskPipelineSpec) -> dict[str, Any]:
    operators = [
        {
            "name": operator.name,
            "args": with_defaults(TASK_OPERATORS, operator.name, operator.args)
            if operator.name in TASK_OPERATORS.names()
            else operator.args,
        }
        for operator in pipeline.operators
    ]
    return {
        "operators": operators,
        "num_process": pipeline.num_process,
        "inputs": list(pipeline.inputs),
        "output": {"path": pipeline.output} if pipeline.output else None,
        "target_fields": list(pipeline.target_fields),
        "priority_weights": pipeline.priority_weights,
        "top_k": pipeline.top_k,
        "made": msgspec.json.decode(msgspec.json.encode(pipeline.made)) if pipeline.made is not None else {},
    }


def service_section(spec: ExperimentSpec) -> dict[str, Any]:
    """Returns the section `service` for the operators of all stages; empty without any using a service."""
    services: list[dict[str, Any]] = [
        msgspec.to_builtins(stage.task_pipeline.juicer)
        for stage in spec.stages
        if stage.task_pipeline is not None and stage.task_pipeline.juicer is not None
    ]
    operators = (operator for stage in spec.stages for operator in stage.pipeline)
    services += [operator.args[SERVICE_CONFIG] for operator in operators if SERVICE_CONFIG in operator.args]
    if not services:
        return {}
    written = {name: setting or None for name, setting in services[0].items()}
    return {"data_juicer": {**written, "auto_start": services[0]["auto_start"], "release": services[0]["release"]}}


def mode_of(stage: StageSpec, half: str) -> str:
    """Returns the guide's `mode` for a stage; `half` is `both`, `explore` or `train`."""
    if stage.kind == "train":
        return "train"
    if stage.serving is not None:
        return "serve"
    if stage.kind == "explore":
        return "bench" if stage.taskset is None else "explore"
    return "colocate" if stage.turns else half


def buffer_section(stage: StageSpec) -> dict[str, Any]:
    """Returns section `buffer` of a stage: tasksets with workflow, reward and sampling, training data, and amounts."""
    section: dict[str, Any] = {"batch_size": stage.batch_size}
    # For a stage without training the size is informative, and follows from the explored tasks unless written.
    if stage.kind != "explore" or stage.train_batch_size != stage.batch_size * stage.algorithm.repeat_times:
        section["train_batch_size"] = stage.train_batch_size
    steps = stage.total_steps
    if stage.kind == "explore" and stage.collect_groups != LAST_INDEX:
        steps = stage.collect_groups // stage.batch_size
    if steps:
        section["total_steps"] = steps
    elif stage.total_epochs:
        section["total_epochs"] = stage.total_epochs
    if stage.kind != "train":
        section["explorer_input"] = _explorer_input(stage)
    section["trainer_input"] = _trainer_input(stage)
    return section


def _explorer_input(stage: StageSpec) -> dict[str, Any]:
    """Returns section `buffer.explorer_input` of a stage."""
    section: dict[str, Any] = {}
    if stage.serving is not None and stage.taskset is not None:
        # The tasks are clients' requests: only the sampling of answers is configurable.
        section["taskset"] = {"rollout_args": _sampling(stage.taskset.sampling)}
    elif stage.more_tasksets:
        section["tasksets"] = [_taskset(taskset) for taskset in tasksets_of(stage)]
    elif stage.taskset is not None:
        section["taskset"] = _taskset(stage.taskset)
    section["eval_tasksets"] = [_taskset(taskset) for taskset in stage.evals]
    return section


def _taskset(spec: TasksetSpec) -> dict[str, Any]:
    """Returns the section of one taskset."""
    return {
        "name": spec.name,
        "storage_type": "queue" if spec.queue else _storage(spec),
        "path": _path(spec),
        "subset_name": spec.subset,
        "split": spec.split,
        "format": acting_fields(spec.format),
        "rollout_args": _sampling(spec.sampling),
        "default_workflow_type": spec.workflow,
        "workflow_args": with_defaults(WORKFLOWS, spec.workflow, spec.workflow_args),
        "default_reward_fn_type": spec.reward,
        "reward_fn_args": with_defaults(REWARDS, spec.reward or own_reward(spec.workflow), spec.reward_args),
        "data_selector": {
            "selector_type": spec.selector,
            "seed": spec.seed,
            "feature_keys": list(spec.feature_keys),
            "kwargs": with_defaults(SELECTORS, spec.selector, spec.selector_args) if draws(spec.selector) else {},
        },
        "algorithm_type": spec.algorithm or None,
        "advantage_fn_args": with_defaults(ADVANTAGES, spec.advantage, spec.advantage_args) if spec.algorithm else None,
        "repeat_times": spec.repeat_times,
        "max_retry_times": spec.max_retry_times,
        "limit_rows": spec.limit_rows,
    }


def _storage(spec: TasksetSpec) -> str:
    """Returns the storage type of rows: `sql` for a table, otherwise `file`."""
    return "sql" if "://" in spec.path and not names_environment(spec.path) else "file"


def _path(spec: TasksetSpec) -> str | list[str] | dict[str, str] | None:
    """Returns the path of rows as written in a file."""
    if spec.path.startswith(VARIABLE):
        return {"env": spec.path.removeprefix(VARIABLE)}
    return list(spec.paths) if spec.more_paths else spec.path or None


def _sampling(spec: SamplingSpec) -> dict[str, Any]:
    """Returns the section of sampling settings."""
    return {
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "top_k": spec.top_k,
        "min_p": spec.min_p,
        "max_tokens": spec.max_tokens,
        "min_tokens": spec.min_tokens,
        "stop": list(spec.stop),
        "repetition_penalty": spec.repetition_penalty,
        "presence_penalty": spec.presence_penalty,
        "logit_bias": {str(token): bias for token, bias in spec.logit_bias},
        "ignore_eos": spec.ignore_eos,
        "logprobs": "processed" if spec.processed_logprobs else "raw",
    }


def _trainer_input(stage: StageSpec) -> dict[str, Any]:
    """Returns section `buffer.trainer_input` of a stage."""
    if stage.kind == "train":
        return {"experience_buffer": _rows(stage.dataset)} if stage.dataset is not None else {}
    section: dict[str, Any] = {}
    experiences: dict[str, Any] = {"storage_type": "queue", "max_read_timeout": stage.max_read_timeout_s}
    if stage.kind == "both":
        experiences |= {"capacity": stage.policy.capacity, "replay_buffer": replay_buffer(stage.policy)}
    section["experience_buffer"] = experiences
    if stage.dataset is not None:
        name = stage.algorithm.sample_strategy_args.get("sft_dataset_name", "sft_dataset")
        section["auxiliary_buffers"] = {
            name: {**_rows(stage.dataset), "total_epochs": stage.dataset.max_epochs or None}
        }
    return section


def _rows(spec: TasksetSpec) -> dict[str, Any]:
    """Returns the section of a dataset of rows."""
    return {
        "name": spec.name,
        "storage_type": _storage(spec),
        "path": _path(spec),
        "subset_name": spec.subset,
        "split": spec.split,
        "schema_type": spec.schema,
        "format": acting_fields(spec.format),
        "limit_rows": spec.limit_rows,
    }
