"""`resolve_experiment` turns a valid file into the specification that the log keeps."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from typing import Any

from rftd.daemon.config.field_path import FieldPath, child, show
from rftd.daemon.config.issue import Issue, Notes, Unsupported
from rftd.daemon.config.resolve.idle_fields import idle_fields
from rftd.daemon.config.resolve.monitor import check_monitor, trackers_of
from rftd.daemon.config.resolve.stage import resolve_stage
from rftd.daemon.config.resolve.stages import check_against_first, stage_configs, with_one_trainer
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import as_declared, without_effect
from rftd.daemon.config.schema.trainer import Trainer
from rftd.streams.spec.budgets import Budgets
from rftd.streams.spec.engine_needs import ClusterSpec
from rftd.streams.spec.spec import ExperimentSpec, StageSpec
from rftd.streams.spec.split_submission import EXPLORE, TRAIN
from rftd.workers.devices.host import Host


def resolve_experiment(
    experiment: Experiment, config: dict[str, Any], *, host: Host
) -> tuple[ExperimentSpec | None, list[Issue]]:
    """The specification, and everything in it that contradicts itself or cannot be run; None if a stage has no sense.

    `config` is the same file as plain data, as `rftd config show --given` prints it; `host` is the workers' machine.
    """
    # All stages are resolved even if one is wrong, so that a user sees everything at once.
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
        issues += [placed(issue, stage.prefix, config) for issue in notes.issues]
        # Sections that stages inherit warn once for each of them.
        warnings += [warning for warning in notes.warnings if warning not in warnings]
        if spec is not None:
            stages.append(spec)
        if spec is not None and spec.kind == "both":
            modes.add(mode if (mode := stage.experiment.mode) in (EXPLORE, TRAIN) else "both")
    issues += _refused(experiment)
    wrong, said = check_monitor(experiment.monitor)
    limits = as_declared(experiment.limits, Budgets)
    issues += [*wrong, *check_budgets(limits)]
    warnings += said
    if len(stages) == len(configs):
        warnings += idle_fields(config, list(zip(configs, stages, strict=True)))
    warnings = [*_harmless(experiment), *warnings]
    if len(modes) > 1:
        what = f"stages that explore have the modes {', '.join(sorted(modes))}: one submission brings one half"
        issues.append(Issue(("mode",), what, "give all of them the same mode"))
    if len(stages) > 1 and any(stage.serving is not None for stage in stages):
        what = f"is serve, and there are {len(stages)} stages: clients would be answered in one of them alone"
        issues.append(Issue(("mode",), what, "serve in an experiment of its own, from the checkpoint of this one"))
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
    address = experiment.cluster.ray_address
    return ClusterSpec(
        address="" if address == "auto" else address,
        namespace=experiment.ray_namespace,
        timeline=experiment.monitor.enable_ray_timeline,
        logs_by_node=experiment.log.group_by_node,
    )


def _without_cluster(experiment: Experiment, host: Host) -> Iterator[str]:
    """A warning for each field that only a cluster obeys."""
    written = {
        "cluster.ray_address": experiment.cluster.ray_address not in ("", "auto"),
        "ray_namespace": bool(experiment.ray_namespace),
        "monitor.enable_ray_timeline": experiment.monitor.enable_ray_timeline,
        "log.group_by_node": experiment.log.group_by_node,
    }
    for name, is_written in written.items():
        if is_written and host.seen and not (host.clustered or host.for_trainers.clustered):
            yield f"{name} has an effect on a Ray cluster only: rftd serve --workers ray"


def _job_dir(experiment: Experiment) -> str:
    parts = [experiment.project, experiment.group, experiment.name]
    return os.path.join(experiment.checkpoint_root_dir, *(part for part in parts if part))


def _check_root(experiment: Experiment) -> list[Issue]:
    root = experiment.checkpoint_root_dir
    if os.path.isabs(root):
        return []
    what = f"must be absolute here, not {root!r}: this side has another working directory"
    return [Issue(("checkpoint_root_dir",), what, "submit the file with `rftd submit`, or write the whole path")]


def _check_stage_names(experiment: Experiment) -> list[Issue]:
    seen: set[str] = set()
    issues: list[Issue] = []
    for index, stage in enumerate(experiment.stages):
        if stage.stage_name in seen:
            path: FieldPath = ("stages", index, "stage_name")
            issues.append(Issue(path, f"two stages are named {stage.stage_name!r}", "give each its own name"))
        seen.add(stage.stage_name)
    return issues


def _check_trainer_config(experiment: Experiment) -> list[Issue]:
    """The issues of `trainer_config_path`: the client has put the global one in line, and no other can be read here."""
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
    """A warning for each field without effect that changes nothing that is trained or sampled."""
    for path, _, mark in without_effect(experiment):
        if mark.effect == "harmless":
            yield f"{show(path)} has no effect" + (f": {mark.why}" if mark.why else "")


def _refused(experiment: Experiment) -> Iterator[Issue]:
    """An issue for each field that would change what is trained or sampled, and cannot yet."""
    pipelines: set[FieldPath] = set()
    for path, value, mark in without_effect(experiment):
        if mark.effect != "refused":
            continue
        if "data_processor" in path:
            # A pipeline is refused as one: what its other fields ask for goes with it.
            pipeline = path[: path.index("data_processor") + 2]
            if pipeline in pipelines:
                continue
            pipelines.add(pipeline)
        same: Any = experiment
        for part in mark.same_as.split(".") if mark.same_as else ():
            same = getattr(same, part)
        if not mark.same_as or value != same:
            asked = f"is {value!r}" if isinstance(value, str | int | float) else "is given"
            yield Issue(path, f"{asked}, and cannot act yet: {mark.why}", mark.fix, Unsupported)


def placed(issue: Issue, prefix: FieldPath, config: Any) -> Issue:
    """The issue under the stage's name where the stage sets the field, else under the global one."""
    if not prefix:
        return issue
    node: Sequence[Any] | dict[str, Any] | Any = config["stages"][prefix[1]]
    below_stage = bool(issue.path) and isinstance(node, dict) and issue.path[0] in (*node, "mode")
    # A stage inherits the field: the error points at the global section, where it can be corrected.
    if not below_stage:
        return issue
    for part in issue.path[:-1]:
        node = child(node, part if isinstance(node, list) else str(part))
        if node is None:
            return issue
    return issue.under(prefix)


def check_budgets(limits: Budgets) -> Iterator[Issue]:
    """The errors of section `limits`."""
    prices = ("accelerator_hour_price", "million_tokens_price")
    written = [name for name in prices if getattr(limits, name)]
    if limits.cost and not written:
        fix = "add limits.accelerator_hour_price, limits.million_tokens_price, or both"
        yield Issue(("limits", "cost"), f"is {limits.cost:g}, and nothing has a price", fix)
    if written and not limits.cost:
        yield Issue(
            ("limits", written[0]), "is a price, and there is no limits.cost", "add limits.cost, or leave it out"
        )
