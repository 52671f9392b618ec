"""Specification of a fork: its parent's configuration with changes, after a history shared with the parent."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.daemon.config.loading import check_config
from rftd.daemon.run.supervisor.memory_plan import as_before
from rftd.daemon.run.supervisor.preflight import preflight
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops.errors import ConfigError, ConflictError
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.folds.evaluations import eval_id
from rftd.streams.folds.spine import Kept, Spine, Status
from rftd.streams.log.shared_history import SharedHistory
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_tasks import is_queue, tasksets_of
from rftd.workers.devices.host import ANY_HOST, Host

_DATA: Final = ("digest", "rows", "selector", "seed", "selector_args", "feature_keys")
"""Fields of a dataset determining the row at a position."""


def check_parent(name: str, spine: Spine) -> None:
    """Raises ConflictError for an experiment that cannot be forked now: nothing trained yet, archived, or files
    removed.
    """
    if spine.status in (None, Status.SUBMITTED, Status.REJECTED):
        raise ConflictError(
            f"{name} is {spine.status or 'unknown'}: it has no history to share", fix="fork one that was accepted"
        )
    if spine.kept is Kept.ARCHIVED:
        raise ConflictError(
            f"the files of {name} are in an archive", fix=f"restore it first: rftd restore {shlex.quote(name)}"
        )
    if spine.kept is Kept.REMOVED:
        raise ConflictError(f"the files of {name} were removed", fix="fork a checkpoint whose files exist")


def check_payloads(name: str, spine: Spine, at_step: int) -> None:
    """Raises ConflictError if the fork would have to train experiences whose tokens were dropped from the log."""
    dropped_through = spine.payloads_dropped_through
    if 0 < at_step < dropped_through:
        raise ConflictError(
            f"the tokens that {name} was trained on up to step {dropped_through} were dropped from the log",
            field="at_step",
            fix=f"fork it at step {dropped_through}" + (" or later" * (dropped_through < spine.furthest)),
        )


def forked_spec(
    parent: ExperimentSpec,
    shared: SharedHistory,
    overrides: Sequence[str],
    *,
    name: str,
    labels: dict[str, str] | None = None,
    host: Host = ANY_HOST,
    judge: SubmissionJudge,
) -> ExperimentSpec:
    """Returns the fork's specification, checked for workers on `host`. `labels` are added to the parent's. Raises
    ConfigError (with every wrong field), DataError. Blocks.

    Stages completed in the shared history stay as trained; the others follow `overrides`, for workers on `host`.
    """
    config: dict[str, Any] = {**parent.config, "name": name, "labels": {**parent.labels, **(labels or {})}}
    spec = check_config(config, overrides=overrides, host=host, judge=None if judge.asker.is_owner else judge.file)
    # The whole specification, not only the overrides: names allowed to the parent's submitter mean nothing for the
    # forker.
    judge.spec(spec)
    spec = msgspec.structs.replace(spec, reach=judge.reach)
    history = shared.spine.spec
    event = shared.forked
    assert history is not None
    _check_same_stages(spec, history, event)
    check_same_base(spec, history)
    stages = tuple(
        # Finished stages are taken from the recorded history, never from the overrides: the shared events were decided
        # under that specification and are folded under it again.
        msgspec.structs.replace(old, folder=new.folder)
        for old, new in zip(history.stages[: event.stage], spec.stages, strict=False)
    )
    # Only data to be read again is inspected: the datasets of finished stages may have changed or disappeared.
    checked = preflight(msgspec.structs.replace(spec, stages=spec.stages[event.stage :]), host)
    checked = as_before(checked, history.stages, host)
    ignored = tuple(_ignored(spec, parent, stages, host))
    # A parent with both halves gives the fork both halves.
    forked = msgspec.structs.replace(
        spec,
        stages=(*stages, *checked.stages),
        half="both",
        warnings=(*spec.warnings, *ignored),
        memory=checked.memory,
    )
    _check_continues(forked, history, event)
    return forked


def continued_spec(spec: ExperimentSpec, shared: SharedHistory, host: Host) -> ExperimentSpec:
    """Returns `spec`, already passed by the preflight for `host`, continuing from a history. Raises ConfigError if it
    cannot.

    Stages completed in the history stay as trained; a warning names those changed by `spec`. Blocks.
    """
    history = shared.spine.spec
    event = shared.forked
    assert history is not None
    _check_same_stages(spec, history, event)
    check_same_base(spec, history)
    settled = tuple(
        msgspec.structs.replace(old, folder=new.folder)
        for old, new in zip(history.stages[: event.stage], spec.stages, strict=False)
    )
    ignored = tuple(_no_effect_warning(old) for old, new in zip(settled, spec.stages, strict=False) if old != new)
    open_stages = msgspec.structs.replace(spec, stages=spec.stages[event.stage :])
    spec = as_before(open_stages, history.stages, host)
    spec = msgspec.structs.replace(spec, stages=(*settled, *spec.stages), warnings=(*spec.warnings, *ignored))
    _check_continues(spec, history, event)
    return spec


def evaluated(spec: ExperimentSpec, shared: SharedHistory) -> tuple[int, ...]:
    """Returns the indices of the continuing stage's tasksets already answered by the parent with the shared weights."""
    history = shared.spine.spec
    event = shared.forked
    assert history is not None
    # At the last step of a stage the fork continues with the next one, so the next stage's evaluations may be answered.
    stage = event.stage + (event.at_step == event.first_versions[-1] + spec.stages[event.stage].total_steps)
    if stage >= min(len(spec.stages), len(history.stages)):
        return ()
    return tuple(
        index
        for index, taskset in enumerate(spec.stages[stage].evals)
        for parent_index, parent_taskset in enumerate(history.stages[stage].evals)
        if _is_same_taskset(taskset, parent_taskset)
        and eval_id(event.parent, stage, event.at_step, parent_index) in shared.spine.evaluated
    )


def moved(spec: ExperimentSpec, name: str, job_dir: str) -> ExperimentSpec:
    """Returns the specification under another name and in the folder `job_dir`, with the folders of its stages."""
    stages = tuple(
        msgspec.structs.replace(stage, folder=str(Path(job_dir, Path(stage.folder).relative_to(spec.job_dir))))
        for stage in spec.stages
    )
    config = {**spec.config, "name": name}
    return msgspec.structs.replace(spec, name=name, job_dir=job_dir, stages=stages, config=config)


def lineage_note(experiment: UUID, parent: str, shared: SharedHistory) -> tuple[str, ...]:
    """Returns a warning if `shared` ends in an ancestor of the requested experiment `parent`; empty otherwise."""
    spec = shared.spine.spec
    if shared.forked.parent == experiment or spec is None:
        return ()
    return (
        f"step {shared.forked.at_step} of {parent} is one that it shares with {spec.name}, "
        f"so this is a fork of {spec.name} with the configuration of {parent}",
    )


def _check_same_stages(spec: ExperimentSpec, history: ExperimentSpec, event: ExperimentForked) -> None:
    # A stage's number and name are in its events, its folder and its checkpoints; after a renaming the shared history
    # would lead into missing folders.
    """Raises ConfigError if a stage up to the step of the fork has another name, or its begun stage another mode."""
    names = [stage.name for stage in history.stages[: event.stage + 1]]
    fork_names = [stage.name for stage in spec.stages[: event.stage + 1]]
    if fork_names != names:
        raise ConfigError(
            f"the stages up to step {event.at_step} are {', '.join(names)}; here they would be {', '.join(fork_names)}",
            field="stages",
            fix="keep their number, names and order; later stages may change",
        )
    old = history.stages[event.stage]
    new = spec.stages[event.stage]
    if old.kind != new.kind and event.at_step > event.first_versions[-1]:
        raise ConfigError(
            f"stage {old.name!r} has begun in mode {old.kind}, it cannot continue in mode {new.kind}",
            field="mode",
            fix="change the mode of a stage that has not begun",
        )


def check_same_base(spec: ExperimentSpec, history: ExperimentSpec) -> None:
    """Raises ConfigError if `spec` starts from another model, or trains with another engine, than the `history` to be
    continued.
    """
    old = history.stages[0]
    new = spec.stages[0]
    if new.model.path != old.model.path:
        raise ConfigError(
            f"its history began with {old.model.path}",
            field="model.model_path",
            fix="submit an experiment for another model",
        )
    if new.trainer.engine != old.trainer.engine:
        raise ConfigError(
            f"its history was trained by the engine {old.trainer.engine!r}",
            field="trainer.trainer_type",
            fix="keep the engine, or submit a new experiment",
        )


def _check_continues(spec: ExperimentSpec, history: ExperimentSpec, event: ExperimentForked) -> None:
    """Raises ConfigError unless the step's stage can continue from the step, or the next stage begin."""
    stage = spec.stages[event.stage]
    old = history.stages[event.stage]
    done = event.at_step - event.first_versions[-1]
    if done > stage.total_steps:
        raise ConfigError(
            f"stage {stage.name!r} would have {stage.total_steps} steps; {done} of them are trained",
            field="buffer.total_steps",
            fix=f"give at least {done}, or fork at an earlier step",
        )
    if done == stage.total_steps and event.stage + 1 == len(spec.stages):
        raise ConfigError(
            f"nothing is left to do after step {event.at_step}: its last stage has {stage.total_steps} steps",
            field="buffer.total_steps",
            fix="give more steps or epochs, for example --set buffer.total_steps=..., or fork at an earlier step",
        )
    if done and (is_queue(stage) or is_queue(old)):
        raise ConfigError(
            f"stage {stage.name!r} was trained on a queue of tasks, and they are of that experiment alone",
            field="buffer.explorer_input.taskset.storage_type",
            fix="submit a new experiment whose model.model_path is the checkpoint",
        )
    if done and (stage.serving is not None or old.serving is not None):
        raise ConfigError(
            f"stage {stage.name!r} was trained on conversations, and they are of that experiment alone",
            field="mode",
            fix="submit a new experiment whose model.model_path is the checkpoint",
        )
    if 0 < done < stage.total_steps:
        # Plans of the shared history name rows by position: in another dataset, or another order, those rows would be
        # repeated or skipped.
        _check_same_data("buffer.trainer_input.experience_buffer", stage, old.dataset, stage.dataset)
        for before, after in zip_longest(tasksets_of(old), tasksets_of(stage)):
            _check_same_data("buffer.explorer_input.taskset", stage, before, after)


def _check_same_data(field: str, stage: StageSpec, before: TasksetSpec | None, after: TasksetSpec | None) -> None:
    """Raises ConfigError about `field` if a stage begun on the taskset `before` would continue on the other rows of
    `after`; two missing tasksets agree.
    """
    if before is None and after is None:
        return
    differs = [name for name in _DATA if getattr(before, name, None) != getattr(after, name, None)]
    if differs:
        raise ConfigError(
            f"stage {stage.name!r} has begun on another dataset (its {', '.join(differs)} differs)",
            field=field,
            fix="keep the data of a stage that has begun, or fork at a step where a stage ends",
        )


def _is_same_taskset(taskset: TasksetSpec, parent_taskset: TasksetSpec) -> bool:
    """True if two tasksets are equal except for their paths."""
    return taskset == msgspec.structs.replace(parent_taskset, path=taskset.path)


def _ignored(spec: ExperimentSpec, parent: ExperimentSpec, settled: Sequence[StageSpec], host: Host) -> Iterator[str]:
    """Yields a warning for each stage finished before the fork whose settings `spec` would change without effect."""
    before = check_config(parent.config, host=host)
    for old, new, settled_stage in zip(before.stages, spec.stages, settled, strict=False):
        if msgspec.structs.replace(new, folder=old.folder) != old:
            yield _no_effect_warning(settled_stage)


def _no_effect_warning(settled: StageSpec) -> str:
    """Returns the warning about changes to a stage trained before the fork."""
    return f"stage {settled.name} was trained before the fork: changes to it have no effect"
