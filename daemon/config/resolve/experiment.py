"""`resolve_experiment` turns a valid file into the specification stored in the log."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from typing import Any

from rftd.daemon.config.field_path import FieldPath, child, show
from rftd.daemon.config.issue import Issue, Notes, Unsupported
from rftd.daemon.config.resolve.ineffective_fields import ineffective_fields
from rftd.daemon.config.resolve.juicer import idle_juicer
from rftd.daemon.config.resolve.monitor import check_monitor, trackers_of
from rftd.daemon.config.resolve.stage import resolve_stage
from rftd.daemon.config.resolve.stages import check_against_first, stage_configs, with_one_trainer
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_declared, without_effect
from rftd.daemon.config.schema.trainer import Trainer
from rftd.streams.spec.engines import ClusterSpec
from rftd.streams.spec.sections import Budgets
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.streams.spec.split_submission import EXPLORE, TRAIN
from rftd.workers.devices.host import Host


def resolve_experiment(
    experiment: Experiment, config: dict[str, Any], *, host: Host
) -> tuple[ExperimentSpec | None, list[Issue]]:
    """Returns the specification, and all contradictions and unsupported settings; None if a stage cannot be resolved.

    `config` is the file as plain data, as printed by `rftd config show --given`; `host` is the workers' machine.
    """
    # All stages are resolved even if one is wrong, so that a user sees all errors at once.
    issues = [*_check_root(experiment), *_check_stage_names(experiment), *_check_trainer_config(experiment)]
    warnings = [*_without_cluster(experiment, host)]
    job_dir = _job_dir(experiment)
    stages: list[StageSpec] = []
    modes: set[str] = set()
    configs = stage_configs(config)
    for stage in configs:
        notes = Notes()
        spec = resolve_stage(stage, job_dir, host, notes)
        if spec is not None:
            check_against_first(spec, stages, notes)
        issues += [relocated(issue, stage.prefix, config) for issue in notes.issues]
        # Sections inherited by several stages warn once per stage.
        warnings += [warning for warning in notes.warnings if warning not in warnings]
        if spec is not None:
            stages.append(spec)
        if spec is not None and spec.kind == "both":
            modes.add(mode if (mode := stage.experiment.mode) in (EXPLORE, TRAIN) else "both")
    issues += _refused(experiment)
    wrong, monitor_warnings = check_monitor(experiment.monitor)
    limits = as_declared(experiment.limits, Budgets)
    issues += [*wrong, *check_budgets(limits)]
    warnings += monitor_warnings
    if len(stages) == len(configs):
        warnings += ineffective_fields(config, list(zip(configs, stages, strict=True)))
    used_sources = {file for stage in stages for file in stage.sources}
    unused_sources = (file for file in experiment.sources if file not in used_sources)
    warnings += [f"sources: {file} has no effect, because nothing names it" for file in unused_sources]
    warnings = [*_harmless(experiment), *idle_juicer(experiment, stages), *warnings]
    if len(modes) > 1:
        problem = f"exploring stages have the modes {', '.join(sorted(modes))}: one submission covers one half"
        issues.append(Issue(("mode",), problem, "give all of them the same mode"))
    if len(stages) > 1 and any(stage.serving is not None for stage in stages):
        problem = f"is serve, but there are {len(stages)} stages: clients would be answered in only one of them"
        issues.append(Issue(("mode",), problem, "serve in a separate experiment, from this one's checkpoint"))
    if len(stages) < len(configs):
        return None, issues
    return (
        ExperimentSpec(
            project=experiment.project,
            group=experiment.group,
            name=experiment.name,
            job_dir=job_dir,
            stages=with_one_trainer(stages) if not issues else tuple(stages),
            half=modes.pop() if modes else "both",
            deterministic=experiment.deterministic,
            seed=experiment.seed,
            priority=experiment.priority,
            config=config,
            warnings=tuple(warnings),
            labels=experiment.labels,
            cluster=_cluster(experiment),
            log_level=experiment.log.level,
            trackers=trackers_of(experiment.monitor),
            limits=limits,
        ),
        issues,
    )


def _cluster(experiment: Experiment) -> ClusterSpec:
    """Returns the settings of the Ray cluster."""
    address = experiment.cluster.ray_address
    return ClusterSpec(
        address="" if address == "auto" else address,
        namespace=experiment.ray_namespace,
        timeline=experiment.monitor.enable_ray_timeline,
        logs_by_node=experiment.log.group_by_node,
    )


def _without_cluster(experiment: Experiment, host: Host) -> Iterator[str]:
    """Yields a warning for each field effective only on a cluster."""
    set_by_name = {
        "cluster.ray_address": experiment.cluster.ray_address not in ("", "auto"),
        "ray_namespace": bool(experiment.ray_namespace),
        "monitor.enable_ray_timeline": experiment.monitor.enable_ray_timeline,
        "log.group_by_node": experiment.log.group_by_node,
    }
    for name, is_written in set_by_name.items():
        if is_written and host.seen and not (host.clustered or host.for_trainers.clustered):
            yield f"{name} only has an effect on a Ray cluster: rftd serve --workers ray"


def _job_dir(experiment: Experiment) -> str:
    """Returns the experiment's folder."""
    parts = [experiment.project, experiment.group, experiment.name]
    return os.path.join(experiment.checkpoint_root_dir, *(folder_name for folder_name in parts if folder_name))


def _check_root(experiment: Experiment) -> list[Issue]:
    """Returns an issue for a relative `checkpoint_root_dir`."""
    root = experiment.checkpoint_root_dir
    if os.path.isabs(root):
        return []
    problem = f"must be absolute here, not {root!r}: the daemon has a different working directory"
    return [Issue(("checkpoint_root_dir",), problem, "submit the file with `rftd submit`, or write the absolute path")]


def _check_stage_names(experiment: Experiment) -> list[Issue]:
    """Returns an issue for each stage named like an earlier one."""
    names: set[str] = set()
    issues: list[Issue] = []
    for index, stage in enumerate(experiment.stages):
        if stage.stage_name in names:
            path: FieldPath = ("stages", index, "stage_name")
            issues.append(Issue(path, f"two stages are named {stage.stage_name!r}", "give each its own name"))
        names.add(stage.stage_name)
    return issues


def _check_trainer_config(experiment: Experiment) -> list[Issue]:
    """Returns issues of `trainer_config_path`: the client inlines the global file, and others cannot be read here."""
    sections: list[tuple[FieldPath, Trainer]] = [(("trainer",), experiment.trainer)]
    sections += [
        (("stages", index, "trainer"), stage.trainer) for index, stage in enumerate(experiment.stages) if stage.trainer
    ]
    return [
        Issue((*path, "trainer_config_path"), "is not read here", "write trainer_config inline", Unsupported)
        for path, trainer in sections
        if trainer.trainer_config_path
    ]


def _harmless(experiment: Experiment) -> Iterator[str]:
    """Yields a warning for each field without effect on training or sampling."""
    for path, _, mark in without_effect(experiment):
        if mark.effect == "harmless":
            yield f"{show(path)} has no effect" + (f": {mark.why}" if mark.why else "")


def _refused(experiment: Experiment) -> Iterator[Issue]:
    """Yields an issue for each unsupported field affecting training or sampling."""
    pipelines: set[FieldPath] = set()
    for path, content, mark in without_effect(experiment):
        if mark.effect != "refused":
            continue
        if "data_processor" in path:
            # A pipeline is refused as a whole, including its other fields.
            pipeline = path[: path.index("data_processor") + 2]
            if pipeline in pipelines:
                continue
            pipelines.add(pipeline)
        same: Any = experiment
        for name in mark.same_as.split(".") if mark.same_as else ():
            same = getattr(same, name)
        if not mark.same_as or content != same:
            setting = f"is {content!r}" if isinstance(content, str | int | float) else "is set"
            yield Issue(path, f"{setting}, but is not supported yet: {mark.why}", mark.fix, Unsupported)


def relocated(issue: Issue, prefix: FieldPath, config: Any) -> Issue:
    """Returns the issue with the path under which the user wrote the field: in the stage if the stage sets it, else
    globally.
    """
    if not prefix:
        return issue
    node: Sequence[Any] | dict[str, Any] | Any = config["stages"][prefix[1]]
    below_stage = bool(issue.path) and isinstance(node, dict) and issue.path[0] in (*node, "mode")
    # An inherited field is corrected in the global section, so the error points there.
    if not below_stage:
        return issue
    for key in issue.path[:-1]:
        node = child(node, key if isinstance(node, list) else str(key))
        if node is None:
            return issue
    return issue.under(prefix)


def check_budgets(limits: Budgets) -> Iterator[Issue]:
    """Yields the errors of section `limits`: a cost limit without a price, and a price without a cost limit."""
    prices = ("accelerator_hour_price", "million_tokens_price")
    set_prices = [name for name in prices if getattr(limits, name)]
    if limits.cost is not None and not set_prices:
        fix = "add limits.accelerator_hour_price, limits.million_tokens_price, or both"
        yield Issue(("limits", "cost"), f"is {limits.cost:g}, but no price is set", fix)
    if set_prices and limits.cost is None:
        yield Issue(
            ("limits", set_prices[0]), "is a price, but limits.cost is not set", "add limits.cost, or leave it out"
        )
