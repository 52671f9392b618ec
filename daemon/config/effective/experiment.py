"""`effective_config` turns a specification into the file that says all of it, and adds what follows from it."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from math import ceil
from typing import Any, Final

from rftd.daemon.config.effective.arguments import acting_fields, with_defaults
from rftd.daemon.config.effective.learning import algorithm_section, policy_section, replay_buffer, trainer_section
from rftd.daemon.config.effective.rollouts import explorer_section, model_section
from rftd.daemon.config.resolve.rows import VARIABLE
from rftd.daemon.config.resolve.stages import stage_trees
from rftd.daemon.config.schema.experiment import Experiment
from rftd.streams.log.bounds import LAST_INDEX
from rftd.streams.spec.auxiliary import SERVICE
from rftd.streams.spec.budgets import Budgets
from rftd.streams.spec.explorer_devices import explorer_devices
from rftd.streams.spec.schedule import explorer_interval, needed_staleness, trainer_interval
from rftd.streams.spec.spec import ExperimentSpec, SamplingSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import tasksets_of
from rftd.workers.control.selectors.registry import SELECTORS, draws
from rftd.workers.workflows.registry import WORKFLOWS, own_reward
from rftd.workers.workflows.rewards.registry import REWARDS

DERIVED: Final = "derived"
"""The section that follows from the others; in a file it has no effect."""
_ORDER: Final = tuple(Experiment.model_fields)
"""Sections stand where the guide has them."""


def derived_section(spec: ExperimentSpec) -> dict[str, Any]:
    """Folders, and for each stage its devices, amounts, schedule and staleness; units are in the names."""
    return {
        "checkpoint_job_dir": spec.job_dir,
        "stages": {stage.name: _derived_stage(spec, stage) for stage in spec.stages},
    }


def _derived_stage(spec: ExperimentSpec, stage: StageSpec) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": {"train": "trains on rows", "both": "explores and trains", "explore": "explores"}[stage.kind],
        "checkpoints": f"{stage.folder}/global_step_N",
        "steps": stage.total_steps or None,
        "gpus": _gpus(spec, stage),
        "batch": _batch(stage),
    }
    if stage.kind != "train":
        found["sync"] = {
            "method": stage.synchronizer.sync_method,
            "style": stage.synchronizer.sync_style,
            "explorer_interval_steps": explorer_interval(stage.synchronizer),
            "trainer_interval_steps": trainer_interval(stage.synchronizer) or None,
        }
        found["eval_interval_steps"] = stage.eval_interval if stage.evals else None
    if stage.kind == "both":
        found["staleness"] = {
            "bound_versions": stage.policy.max_staleness_versions if stage.policy.bounded else None,
            "least_bound_versions": needed_staleness(stage.synchronizer),
            "inflight_batches": stage.policy.max_inflight_batches,
            "capacity_experiences": stage.policy.capacity or None,
        }
    return found


def _gpus(spec: ExperimentSpec, stage: StageSpec) -> dict[str, Any]:
    """The guide's split: engines take theirs, the trainer has the rest. 0: a worker sees what its machine shows."""
    cluster = spec.config.get("cluster") or {}
    nodes = cluster.get("node_num") or 0
    per_node = cluster.get("gpu_per_node") or 0
    explorers = stage.rollout.explorers if stage.kind != "train" else 0
    per_explorer = explorer_devices((stage,)) if explorers else 0
    trainer = stage.trainer.devices if stage.kind != "explore" else 0
    if stage.turns:
        # What there is of GPUs is whose turn it is: neither side has any of its own.
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
    sizes: dict[str, Any] = {}
    if stage.kind != "train":
        sizes["tasks_per_explore_step"] = stage.batch_size
        sizes["rollouts_per_explore_step"] = stage.batch_size * stage.algorithm.repeat_times
    if stage.kind == "explore":
        tasks = stage.collect_groups
        sizes["tasks"] = tasks if 0 < tasks < LAST_INDEX else None
        return sizes
    updates = stage.trainer.updates
    items = stage.train_batch_size
    return {
        **sizes,
        "items_per_training_step": items,
        "experiences_per_training_step": stage.experiences_per_step,
        "rows_per_training_step": stage.expert_rows if stage.kind == "both" else items,
        "optimizer_steps_per_training_step": updates.epochs * ceil(items / (updates.mini_batch_items or max(items, 1))),
    }


def effective_config(spec: ExperimentSpec) -> dict[str, Any]:
    """The experiment in the structure of the configuration guide, with every default and argument that acts in it.

    Its last section is `derived`. As a file it resolves to the same specification, but for arguments that are written
    out at their defaults. Fields that have no effect are left out.
    """
    trees = [stage.tree for stage in stage_trees(spec.config)]
    # A specification that no file gave, as a test's, has no such trees.
    written = trees if len(trees) == len(spec.stages) else [{} for _ in spec.stages]
    single = len(spec.stages) == 1 and spec.stages[0].folder == spec.job_dir
    first = next((stage for stage in spec.stages if stage.kind == "both"), spec.stages[0])
    exploring = [stage for stage in spec.stages if stage.kind != "train"]
    sections = [_stage(spec, stage, tree) for stage, tree in zip(spec.stages, written, strict=True)]
    config = _head(spec)
    if spec.limits != Budgets():
        config["limits"] = acting_fields(spec.limits)
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
    parts = [part for part in (spec.project, spec.group, spec.name) if part]
    below = os.path.join("", *parts)
    # The folder of an experiment that was imported may be any.
    written = spec.config.get("checkpoint_root_dir", "")
    root = spec.job_dir.removesuffix(f"/{below}") or "/" if spec.job_dir.endswith(f"/{below}") else written
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
    written = spec.config.get("cluster")
    # Rows are trained without explorers, to which alone a cluster's counts are of use.
    if written or any(stage.kind != "train" for stage in spec.stages):
        counts = {name: (written or {}).get(name) or 0 for name in ("node_num", "gpu_per_node")}
        config["cluster"] = {"ray_address": spec.cluster.address or "auto", **counts}
    return config


def _trackers(spec: ExperimentSpec) -> dict[str, Any]:
    """The part of `monitor` that its trackers say."""
    if not spec.trackers:
        return {"monitor_type": None}
    first, *others = spec.trackers
    arguments: dict[str, Any] = {}
    for tracker in spec.trackers:
        arguments |= tracker.args | {name: {"env": variable} for name, variable in tracker.variables.items()}
    return {
        "monitor_type": first.kind,
        "also": [tracker.kind for tracker in others],
        "single_run": first.single_run,
        "samples": first.samples,
        "sample_interval": first.sample_interval,
        "monitor_args": arguments or None,
    }


def _stage(spec: ExperimentSpec, stage: StageSpec, written: Mapping[str, Any]) -> dict[str, Any]:
    sections: dict[str, Any] = {
        "mode": mode_of(stage, spec.half),
        "algorithm": algorithm_section(stage.algorithm),
        "buffer": buffer_section(stage),
    }
    if stage.kind != "train":
        sections["explorer"] = explorer_section(stage, written.get("explorer") or {})
    if stage.rollout.engine != SERVICE:  # which answers with weights that nobody here has
        sections["trainer"] = trainer_section(stage)
    if stage.kind == "both" and (policy := policy_section(stage)) is not None:
        sections["policy"] = policy
    return sections


def mode_of(stage: StageSpec, half: str) -> str:
    """The mode that the guide has for such a stage; `half` is the part that the submission brings."""
    if stage.kind == "train":
        return "train"
    if stage.serving is not None:
        return "serve"
    if stage.kind == "explore":
        return "bench" if stage.taskset is None else "explore"
    return "colocate" if stage.turns else half


def buffer_section(stage: StageSpec) -> dict[str, Any]:
    """Every taskset with its workflow, reward and sampling; what is trained on; and how much of it."""
    section: dict[str, Any] = {"batch_size": stage.batch_size}
    # Where nothing is trained it is spoken of, and follows from what is explored unless it was written.
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
    given: dict[str, Any] = {}
    if stage.serving is not None and stage.taskset is not None:
        # Its tasks are what clients ask: only how they are answered is written.
        given["taskset"] = {"rollout_args": _sampling(stage.taskset.sampling)}
    elif stage.more_tasksets:
        given["tasksets"] = [_taskset(each) for each in tasksets_of(stage)]
    elif stage.taskset is not None:
        given["taskset"] = _taskset(stage.taskset)
    given["eval_tasksets"] = [_taskset(each) for each in stage.evals]
    return given


def _taskset(spec: TasksetSpec) -> dict[str, Any]:
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
        "repeat_times": spec.repeat_times,
        "max_retry_times": spec.max_retry_times,
        "limit_rows": spec.limit_rows,
    }


def _storage(spec: TasksetSpec) -> str:
    return "sql" if "://" in spec.path else "file"


def _path(spec: TasksetSpec) -> str | list[str] | dict[str, str] | None:
    if spec.path.startswith(VARIABLE):
        return {"env": spec.path.removeprefix(VARIABLE)}
    return list(spec.paths) if spec.more_paths else spec.path or None


def _sampling(spec: SamplingSpec) -> dict[str, Any]:
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
    if stage.kind == "train":
        return {"experience_buffer": _rows(stage.dataset)} if stage.dataset is not None else {}
    given: dict[str, Any] = {}
    experiences: dict[str, Any] = {"storage_type": "queue", "max_read_timeout": stage.max_read_timeout_s}
    if stage.kind == "both":
        experiences |= {"capacity": stage.policy.capacity, "replay_buffer": replay_buffer(stage.policy)}
    given["experience_buffer"] = experiences
    if stage.dataset is not None:
        name = stage.algorithm.sample_strategy_args.get("sft_dataset_name", "sft_dataset")
        given["auxiliary_buffers"] = {name: {**_rows(stage.dataset), "total_epochs": stage.dataset.max_epochs or None}}
    return given


def _rows(spec: TasksetSpec) -> dict[str, Any]:
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
