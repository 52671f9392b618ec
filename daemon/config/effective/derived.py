"""Section `derived`: what follows from the rest of a specification."""

from __future__ import annotations

from math import ceil
from typing import Any

from rftd.streams.bounds import LAST_INDEX
from rftd.streams.explorer_devices import explorer_devices
from rftd.streams.schedule import explorer_interval, needed_staleness, trainer_interval
from rftd.streams.spec import ExperimentSpec, StageSpec


def derived_section(spec: ExperimentSpec) -> dict[str, Any]:
    """Folders, and for each stage its devices, amounts, schedule and staleness; units are in the names."""
    return {
        "checkpoint_job_dir": spec.job_dir,
        "stages": {stage.name: _stage(spec, stage) for stage in spec.stages},
    }


def _stage(spec: ExperimentSpec, stage: StageSpec) -> dict[str, Any]:
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
    each = explorer_devices((stage,)) if explorers else 0
    trainer = stage.trainer.devices if stage.kind != "explore" else 0
    if stage.turns:
        # What there is of GPUs is whose turn it is: neither side has any of its own.
        return {"total_gpu_num": nodes * per_node or None, "explorer_num": explorers, "taken_in_turns": True}
    found: dict[str, Any] = {
        "total_gpu_num": nodes * per_node or None,
        "explorer_num": explorers,
        "gpus_per_explorer": each,
        "rollout_gpu_num": explorers * each,
        "trainer_gpu_num": trainer,
    }
    if trainer and per_node:
        found["trainer_node_num"] = ceil(trainer / per_node)
        found["trainer_gpu_num_per_node"] = min(trainer, per_node)
    return found


def _batch(stage: StageSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if stage.kind != "train":
        found["tasks_per_explore_step"] = stage.batch_size
        found["rollouts_per_explore_step"] = stage.batch_size * stage.algorithm.repeat_times
    if stage.kind == "explore":
        tasks = stage.collect_groups
        found["tasks"] = tasks if 0 < tasks < LAST_INDEX else None
        return found
    updates = stage.trainer.updates
    items = stage.train_batch_size
    return {
        **found,
        "items_per_training_step": items,
        "experiences_per_training_step": stage.experiences_per_step,
        "rows_per_training_step": stage.expert_rows if stage.kind == "both" else items,
        "optimizer_steps_per_training_step": updates.epochs * ceil(items / (updates.mini_batch_items or max(items, 1))),
    }
