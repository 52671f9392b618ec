"""Experiments, their learning signal, stages and warnings, from the spine."""

from __future__ import annotations

from typing import Final

from rftd.storage.database.tables.experiments import (
    Annotations,
    Experiments,
    RunNotes,
    Stages,
    Transitions,
    Warnings,
)
from rftd.storage.projector.projections.projection import Projection, id_of, json_of, owner_of
from rftd.storage.projector.upserts import Changes, Rule, Upsert
from rftd.streams.events import experiment
from rftd.streams.events.experiment import CheckpointChosen, SignalLost, SignalRegained, StageStopped
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.log.envelope import Decoded

SUBMITTED: Final = Upsert(
    Experiments,
    prefix="submitted",
    owns=(
        "project",
        "group_name",
        "name",
        "job_dir",
        "stages",
        "total_steps",
        "deterministic",
        "seed",
        "priority",
        "config",
        "labels",
    ),
)
STATE: Final = Upsert(
    Experiments,
    prefix="state",
    owns=("state", "state_code", "state_reason", "state_role"),
    rule=Rule.LAST,
    # An end state is final; the spine is one partition, so its order is fixed.
    final=("state", tuple(status.value for status in Status if status.ended)),
)
PRIORITIZED: Final = Upsert(Experiments, prefix="prioritized", owns=("prioritized",), rule=Rule.LAST)
STARTED: Final = Upsert(Experiments, prefix="started")
FORKED: Final = Upsert(Experiments, prefix="forked", owns=("parent", "forked_step"))
KEPT: Final = Upsert(
    Experiments,
    prefix="kept",
    owns=("kept", "kept_path", "kept_reason"),
    rule=Rule.LAST,
    final=("kept", (Kept.REMOVED.value,)),
)
SIGNAL: Final = Upsert(
    Experiments, prefix="signal", owns=("signal_cause", "signal_reason", "signal_step"), rule=Rule.LAST
)
STAGE: Final = Upsert(
    Stages,
    prefix="submitted",
    owns=("name", "kind", "algorithm", "total_steps", "batch_size", "train_batch_size"),
)
STAGE_STARTED: Final = Upsert(Stages, prefix="started", owns=("first_version",))
STAGE_COMPLETED: Final = Upsert(Stages, prefix="completed", owns=("last_version",))
STAGE_BEST: Final = Upsert(
    Stages,
    prefix="best",
    owns=("best_version", "best_figure", "best_value", "best_base", "best_kept"),
    rule=Rule.LAST,
)
STAGE_STOPPED: Final = Upsert(Stages, prefix="stopped", owns=("stopped_by", "stopped_reason"))
WARNED: Final = Upsert(Warnings, prefix="warned", owns=("text",))
MOVED: Final = Upsert(Transitions, prefix="moved", owns=("change", "code", "reason", "step"))

NOTED: Final = Upsert(RunNotes, prefix="noted", owns=("experience", "text", "author"))
STARRED: Final = Upsert(Annotations, prefix="starred", owns=("starred",), rule=Rule.LAST)
LABELLED: Final = Upsert(Annotations, prefix="labelled", owns=("labels",), rule=Rule.LAST)


def _submitted(event: experiment.ExperimentSubmitted, decoded: Decoded, changes: Changes) -> None:
    spec = event.spec
    owner = owner_of(decoded)
    changes.put(
        SUBMITTED,
        decoded,
        id=owner,
        project=spec.project,
        group_name=spec.group,
        name=spec.name,
        job_dir=spec.job_dir,
        stages=len(spec.stages),
        total_steps=sum(stage.total_steps for stage in spec.stages),
        deterministic=spec.deterministic,
        seed=spec.seed,
        priority=spec.priority,
        config=json_of(spec.config),
        labels=json_of(spec.labels),
    )
    for number, stage in enumerate(spec.stages):
        changes.put(
            STAGE,
            decoded,
            experiment=owner,
            stage=number,
            name=stage.name,
            kind=stage.kind,
            algorithm=stage.algorithm.kind,
            total_steps=stage.total_steps,
            batch_size=stage.batch_size,
            train_batch_size=stage.train_batch_size,
        )
    for number, text in enumerate(spec.warnings):
        changes.put(WARNED, decoded, experiment=owner, origin="submitted", number=number, text=text)


def _state(
    decoded: Decoded, changes: Changes, status: Status, *, code: str = "", reason: str = "", role: str = ""
) -> None:
    changes.put(
        STATE,
        decoded,
        id=owner_of(decoded),
        state=status.value,
        state_code=code,
        state_reason=reason,
        state_role=role,
    )
    _moved(decoded, changes, status.value, code=code, reason=reason)


def _moved(
    decoded: Decoded, changes: Changes, change: str, *, code: str = "", reason: str = "", step: int | None = None
) -> None:
    owner = owner_of(decoded)
    changes.put(
        MOVED, decoded, experiment=owner, number=decoded.offset, change=change, code=code, reason=reason, step=step
    )


def _accepted(event: experiment.ExperimentAccepted, decoded: Decoded, changes: Changes) -> None:
    _state(decoded, changes, Status.QUEUED)


def _rejected(event: experiment.ExperimentRejected, decoded: Decoded, changes: Changes) -> None:
    if event.request is None:  # else no experiment exists
        _state(decoded, changes, Status.REJECTED, code=event.code, reason=event.reason)


def _prioritized(event: experiment.ExperimentPrioritized, decoded: Decoded, changes: Changes) -> None:
    changes.put(PRIORITIZED, decoded, id=owner_of(decoded), prioritized=event.priority)


def _annotated(event: experiment.ExperimentAnnotated, decoded: Decoded, changes: Changes) -> None:
    owner = owner_of(decoded)
    experience = id_of(event.experience)
    subject = owner if experience is None else experience
    if event.note:
        changes.put(
            NOTED,
            decoded,
            experiment=owner,
            number=decoded.offset,
            experience=experience,
            text=event.note,
            author=event.by,
        )
    if event.star is not None:
        changes.put(STARRED, decoded, experiment=owner, experience=subject, starred=event.star)
    if event.labels is not None:
        changes.put(LABELLED, decoded, experiment=owner, experience=subject, labels=json_of(event.labels))


def _started(event: experiment.ExperimentStarted, decoded: Decoded, changes: Changes) -> None:
    changes.put(STARTED, decoded, id=owner_of(decoded))
    _state(decoded, changes, Status.RUNNING)


def _paused(event: experiment.ExperimentPaused, decoded: Decoded, changes: Changes) -> None:
    _state(decoded, changes, Status.PAUSED, code=event.cause, reason=event.reason)


def _resumed(event: experiment.ExperimentResumed, decoded: Decoded, changes: Changes) -> None:
    # The event's own reason, such as `refused: tried again`, is about a pause that is over.
    _state(decoded, changes, Status.QUEUED if event.queued else Status.RUNNING)


def _cancelled(event: experiment.ExperimentCancelled, decoded: Decoded, changes: Changes) -> None:
    _state(decoded, changes, Status.CANCELLED, reason=event.reason)


def _completed(event: experiment.ExperimentCompleted, decoded: Decoded, changes: Changes) -> None:
    _state(decoded, changes, Status.COMPLETED)


def _failed(event: experiment.ExperimentFailed, decoded: Decoded, changes: Changes) -> None:
    _state(decoded, changes, Status.FAILED, code=event.code, reason=event.reason, role=event.role)


def _warned(event: experiment.ExperimentWarned, decoded: Decoded, changes: Changes) -> None:
    changes.put(WARNED, decoded, experiment=owner_of(decoded), origin="warned", number=decoded.offset, text=event.text)


def _forked(event: experiment.ExperimentForked, decoded: Decoded, changes: Changes) -> None:
    changes.put(FORKED, decoded, id=owner_of(decoded), parent=event.parent.bytes, forked_step=event.at_step)


def _archived(event: experiment.ExperimentArchived, decoded: Decoded, changes: Changes) -> None:
    _kept(decoded, changes, Kept.ARCHIVED, path=event.path)


def _restored(event: experiment.ExperimentRestored, decoded: Decoded, changes: Changes) -> None:
    _kept(decoded, changes, Kept.HERE, path=event.path)


def _removed(event: experiment.ExperimentRemoved, decoded: Decoded, changes: Changes) -> None:
    _kept(decoded, changes, Kept.REMOVED, reason=event.reason)


def _kept(decoded: Decoded, changes: Changes, location: Kept, *, path: str = "", reason: str = "") -> None:
    changes.put(KEPT, decoded, id=owner_of(decoded), kept=location.value, kept_path=path, kept_reason=reason)


def _signal_lost(event: SignalLost, decoded: Decoded, changes: Changes) -> None:
    changes.put(
        SIGNAL,
        decoded,
        id=owner_of(decoded),
        signal_cause=event.cause,
        signal_reason=f"{event.reason}; fix: {event.fix}",
        signal_step=event.step,
    )
    _moved(decoded, changes, "signal_lost", code=event.cause, reason=event.reason, step=event.step)


def _signal_regained(event: SignalRegained, decoded: Decoded, changes: Changes) -> None:
    changes.put(SIGNAL, decoded, id=owner_of(decoded), signal_cause="", signal_reason="", signal_step=event.step)
    _moved(decoded, changes, "signal_regained", step=event.step)


def _stage_started(event: experiment.StageStarted, decoded: Decoded, changes: Changes) -> None:
    changes.put(
        STAGE_STARTED, decoded, experiment=owner_of(decoded), stage=event.stage, first_version=event.first_version
    )


def _stage_completed(event: experiment.StageCompleted, decoded: Decoded, changes: Changes) -> None:
    changes.put(
        STAGE_COMPLETED, decoded, experiment=owner_of(decoded), stage=event.stage, last_version=event.last_version
    )


def _checkpoint_chosen(event: CheckpointChosen, decoded: Decoded, changes: Changes) -> None:
    changes.put(
        STAGE_BEST,
        decoded,
        experiment=owner_of(decoded),
        stage=event.stage,
        best_version=event.version,
        best_figure=event.figure,
        best_value=event.value,
        best_base=event.base,
        best_kept=json_of(event.kept),
    )


def _stage_stopped(event: StageStopped, decoded: Decoded, changes: Changes) -> None:
    changes.put(
        STAGE_STOPPED,
        decoded,
        experiment=owner_of(decoded),
        stage=event.stage,
        stopped_by=event.version,
        stopped_reason=event.reason,
    )


PROJECTION: Final = Projection(
    name="experiments",
    version=6,
    tables=(Experiments, RunNotes, Annotations, Stages, Transitions, Warnings),
    handlers={
        experiment.ExperimentSubmitted: _submitted,
        experiment.ExperimentAccepted: _accepted,
        experiment.ExperimentRejected: _rejected,
        experiment.ExperimentPrioritized: _prioritized,
        experiment.ExperimentAnnotated: _annotated,
        experiment.ExperimentStarted: _started,
        experiment.ExperimentPaused: _paused,
        experiment.ExperimentResumed: _resumed,
        experiment.ExperimentCancelled: _cancelled,
        experiment.ExperimentCompleted: _completed,
        experiment.ExperimentFailed: _failed,
        experiment.ExperimentWarned: _warned,
        experiment.ExperimentForked: _forked,
        experiment.ExperimentArchived: _archived,
        experiment.ExperimentRestored: _restored,
        experiment.ExperimentRemoved: _removed,
        SignalLost: _signal_lost,
        SignalRegained: _signal_regained,
        experiment.StageStarted: _stage_started,
        experiment.StageCompleted: _stage_completed,
        CheckpointChosen: _checkpoint_chosen,
        StageStopped: _stage_stopped,
    },
)
