"""`mode: bench` of an experiment: each of its checkpoints is answered by an experiment of its own, or the newest alone.

Such an experiment is a fork: it begins with the weights of the checkpoint, whatever trainer engine wrote them, and has
one stage behind those of its history, `bench`, which evaluates and trains nothing. The base model comes first, as an
experiment without a history, if `explorer.eval_on_startup` says so.
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
from rftd.streams.spec.auxiliary import SERVICE
from rftd.streams.spec.spec import ExperimentSpec

_STAGE: Final = "bench"
_LATEST: Final = "bench_on_latest_checkpoint"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint to be measured."""

    step: int
    """0: the base model."""
    parent: Entry | None
    """The experiment whose step it is; None for the base model."""

    def name(self, experiment: str) -> str:
        """The name of the experiment that measures it."""
        return f"{experiment}_bench_{self.step}"


async def checkpoints_to_measure(log: EventLog, entries: Iterable[Entry], spec: ExperimentSpec) -> list[Measured]:
    """The checkpoints of the experiments that lie in the bench's folder, by step; none if it measures its own model.

    Raises ConflictError if the newest is wanted and there is none, if an experiment there trains towards its first, or
    if their files are in an archive.
    """
    if spec.stages[0].rollout.engine == SERVICE:
        return []
    parents = [entry for entry in of_folder(entries, spec) if entry.spine.kept is not Kept.REMOVED]
    found: dict[int, Measured] = {}
    for parent in parents:
        for step in await _steps(log, parent):
            # A later experiment of the folder went on from an earlier step: what it made of the same one counts.
            found[step] = Measured(step=step, parent=parent)
    measured = [found[step] for step in sorted(found)]
    if _explorer(spec).get(_LATEST, False):
        if not measured:
            raise ConflictError(
                f"{spec.job_dir} has no checkpoint of an experiment in this log",
                field=f"explorer.{_LATEST}",
                fix="leave it out to measure model.model_path, which may be the folder of any model",
            )
        return measured[-1:]
    training = next((entry for entry in parents if not entry.spine.ended and not is_bench(entry.spec)), None)
    if training is not None and not measured:
        raise ConflictError(
            f"{training.name} has no checkpoint yet: there is nothing to measure",
            field="mode",
            fix="wait for its first checkpoint (trainer.save_interval), or give the bench another name",
        )
    base = [Measured(step=0, parent=None)] if _explorer(spec).get("eval_on_startup", True) else []
    return [*base, *measured] if measured else []


async def bench_of(
    log: EventLog, measured: Measured, spec: ExperimentSpec, name: str
) -> tuple[ExperimentSpec, ExperimentForked | None]:
    """The bench, under a name, of one checkpoint, and the history that it begins with.

    Raises ConfigError if it says another model or trainer engine than the history has, ConflictError.
    """
    labels = {**spec.labels, "bench": spec.name, "step": str(measured.step)}
    own = moved(spec, name, str(Path(spec.job_dir).with_name(name)))
    own = msgspec.structs.replace(own, labels=labels)
    if measured.parent is None:
        return own, None
    check_parent(measured.parent.name, measured.parent.spine)
    shared = await shared_history(log, measured.parent.id, measured.step)
    event = shared.forked
    history = shared.spine.spec
    assert history is not None
    check_same_base(own, history)
    stages = [
        msgspec.structs.replace(stage, folder=str(Path(own.job_dir, stage.name)))
        for stage in history.stages[: event.stage + 1]
    ]
    # It ends where the checkpoint is, so that the next stage begins there.
    stages[-1] = msgspec.structs.replace(stages[-1], total_steps=measured.step - event.first_versions[-1])
    bench = msgspec.structs.replace(own.stages[0], name=_STAGE, folder=str(Path(own.job_dir, _STAGE)))
    said = f"step {measured.step} of {measured.parent.name} is measured"
    own = msgspec.structs.replace(own, stages=(*stages, bench), warnings=(*own.warnings, said))
    return own, event


async def _steps(log: EventLog, parent: Entry) -> list[int]:
    """The steps of which the experiment has a checkpoint, with the weights that its history has."""
    state = RunState(parent.id)
    heads = await log.heads()
    partitions = [partition_of(stream, parent.id) for stream in (topics.EXPERIMENTS, topics.CHECKPOINTS)]
    ends = {partition: heads[partition].next_offset for partition in partitions if partition in heads}
    await fold_until(log, state, parent.id, ends)
    forked = state.spine.forked
    first = forked.at_step if forked is not None else -1  # that one is the parent's
    return [
        step
        for (step, generation), checkpoint in state.checkpoints.items()
        if step > first and state.spine.made(step, generation, checkpoint.checksum)
    ]


def _explorer(spec: ExperimentSpec) -> Mapping[str, Any]:
    written: Any = spec.config.get("explorer")
    return written if isinstance(written, dict) else {}
