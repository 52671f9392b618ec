"""`mode: bench` of an experiment: evaluates each checkpoint, or only the newest, in a separate experiment.

Such an experiment is a fork: it begins with the weights of the checkpoint, no matter which trainer engine wrote them,
and has one stage after those of its history, `bench`, for evaluation without training. With `explorer.eval_on_startup`,
the base model comes first, as an experiment without a history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from rftd.daemon.run.registry import Entry
from rftd.daemon.run.supervisor.continuing import is_bench, of_folder
from rftd.daemon.run.supervisor.forking import check_parent, check_same_base, moved
from rftd.ops.errors import ConflictError
from rftd.streams.events.experiment import ExperimentForked
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Kept
from rftd.streams.log import topics
from rftd.streams.log.log import EventLog
from rftd.streams.log.shared_history import fold_until, shared_history
from rftd.streams.log.topics import partition_of
from rftd.streams.spec.engines import SERVICE
from rftd.streams.spec.spec import ExperimentSpec

_STAGE: Final = "bench"
"""Name of a bench experiment's last stage."""
_LATEST: Final = "bench_on_latest_checkpoint"
"""Field of `explorer` limiting a bench to the newest checkpoint."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint to be evaluated by a `mode: bench` experiment; step 0 is the base model."""

    step: int
    """Step of the checkpoint; 0: the base model."""
    parent: Entry | None
    """The experiment that trained the step; None for the base model."""

    def name(self, experiment: str) -> str:
        """Returns the name of the bench experiment for this checkpoint: `experiment`, `_bench_` and the step."""
        return f"{experiment}_bench_{self.step}"


async def checkpoints_to_measure(log: EventLog, experiments: Iterable[Entry], spec: ExperimentSpec) -> list[Measured]:
    """Returns the checkpoints in the folder of a bench experiment, ascending by step; empty if the bench evaluates a
    model.

    Raises ConflictError if the newest checkpoint is requested and none exists, if an experiment of the folder is still
    training towards its first checkpoint, or if the files are in an archive.
    """
    if spec.stages[0].rollout.engine == SERVICE:
        return []
    parents = [experiment for experiment in of_folder(experiments, spec) if experiment.spine.kept is not Kept.REMOVED]
    measured_by_step: dict[int, Measured] = {}
    for parent in parents:
        for step in await _steps(log, parent):
            # A later experiment of the folder continued from an earlier step: for a step trained twice, the later
            # version counts.
            measured_by_step[step] = Measured(step=step, parent=parent)
    measured = [measured_by_step[step] for step in sorted(measured_by_step)]
    if _explorer_section(spec).get(_LATEST, False):
        if not measured:
            raise ConflictError(
                f"{spec.job_dir} has no checkpoint of an experiment in this log",
                field=f"explorer.{_LATEST}",
                fix="leave it out to measure model.model_path, which may be the folder of any model",
            )
        return measured[-1:]
    training = next((parent for parent in parents if not parent.spine.ended and not is_bench(parent.spec)), None)
    if training is not None and not measured:
        raise ConflictError(
            f"{training.name} has no checkpoint yet: nothing to measure",
            field="mode",
            fix="wait for its first checkpoint (trainer.save_interval), or give the bench another name",
        )
    base = [Measured(step=0, parent=None)] if _explorer_section(spec).get("eval_on_startup", True) else []
    return [*base, *measured] if measured else []


async def bench_of(
    log: EventLog, measured: Measured, spec: ExperimentSpec, name: str
) -> tuple[ExperimentSpec, ExperimentForked | None]:
    """Returns the specification of one checkpoint's bench experiment, and the fork event it begins with (None for the
    base model).

    Raises ConfigError if the bench names another model or trainer engine than the trained experiment, ConflictError if
    no fork is possible.
    """
    labels = {**spec.labels, "bench": spec.name, "step": str(measured.step)}
    bench_spec = moved(spec, name, str(Path(spec.job_dir).with_name(name)))
    bench_spec = msgspec.structs.replace(bench_spec, labels=labels)
    if measured.parent is None:
        return bench_spec, None
    check_parent(measured.parent.name, measured.parent.spine)
    shared = await shared_history(log, measured.parent.id, measured.step)
    event = shared.forked
    history = shared.spine.spec
    assert history is not None
    check_same_base(bench_spec, history)
    stages = [
        msgspec.structs.replace(stage, folder=str(Path(bench_spec.job_dir, stage.name)))
        for stage in history.stages[: event.stage + 1]
    ]
    # Ends at the checkpoint, so that the next stage begins there.
    stages[-1] = msgspec.structs.replace(stages[-1], total_steps=measured.step - event.first_versions[-1])
    bench = msgspec.structs.replace(bench_spec.stages[0], name=_STAGE, folder=str(Path(bench_spec.job_dir, _STAGE)))
    warning = f"step {measured.step} of {measured.parent.name} is measured"
    bench_spec = msgspec.structs.replace(bench_spec, stages=(*stages, bench), warnings=(*bench_spec.warnings, warning))
    return bench_spec, event


async def _steps(log: EventLog, parent: Entry) -> list[int]:
    """Returns the steps trained by this experiment (not by a parent) with a checkpoint of the weights in the present
    history.
    """
    state = RunState(parent.id)
    heads = await log.heads()
    partitions = [partition_of(stream, parent.id) for stream in (topics.EXPERIMENTS, topics.CHECKPOINTS)]
    ends = {partition: heads[partition].next_offset for partition in partitions if partition in heads}
    await fold_until(log, state, parent.id, ends)
    forked = state.spine.forked
    first = forked.at_step if forked is not None else -1  # the step of the fork belongs to the parent
    return [
        step
        for (step, generation), checkpoint in state.checkpoints.items()
        if step > first and state.spine.made(step, generation, checkpoint.checksum)
    ]


def _explorer_section(spec: ExperimentSpec) -> Mapping[str, Any]:
    """Returns the `explorer` section of the submitted file; empty without one."""
    section: Any = spec.config.get("explorer")
    return section if isinstance(section, dict) else {}
