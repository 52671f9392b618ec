"""`effective_config` turns a specification into the file that says all of it."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import Any, Final

from rftd.daemon.config.effective.arguments import acting_fields
from rftd.daemon.config.effective.data import buffer_section
from rftd.daemon.config.effective.derived import derived_section
from rftd.daemon.config.effective.learning import algorithm_section, trainer_section
from rftd.daemon.config.effective.pacing import policy_section
from rftd.daemon.config.effective.rollouts import explorer_section, model_section
from rftd.daemon.config.resolve.stages import stage_trees
from rftd.daemon.config.schema.experiment import Experiment
from rftd.streams.auxiliary import SERVICE
from rftd.streams.budgets import Budgets
from rftd.streams.spec import ExperimentSpec, StageSpec

DERIVED: Final = "derived"
"""The section that follows from the others; in a file it has no effect."""
_ORDER: Final = tuple(Experiment.model_fields)
"""Sections stand where the guide has them."""


def effective_config(spec: ExperimentSpec) -> dict[str, Any]:
    """The experiment in the structure of the configuration guide, with every default and argument that acts in it.

    Its last section is `derived`. As a file it resolves to the same specification, but for arguments that are written
    out at their defaults. Fields that have no effect are left out.
    """
    trees = [each.tree for each in stage_trees(spec.config)]
    # A specification that no file gave, as a test's, has no such trees.
    written = trees if len(trees) == len(spec.stages) else [{} for _ in spec.stages]
    single = len(spec.stages) == 1 and spec.stages[0].folder == spec.job_dir
    first = next((each for each in spec.stages if each.kind == "both"), spec.stages[0])
    exploring = [each for each in spec.stages if each.kind != "train"]
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
