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
"""Upsert of the columns owned by the submission."""
STATE: Final = Upsert(
    Experiments,
    prefix="state",
    owns=("state", "state_code", "state_reason", "state_role"),
    rule=Rule.LAST,
    # An end state is final; the spine is one partition, so its order is fixed.
    final=("state", tuple(status.value for status in Status if status.ended)),
)
"""Upsert of the columns of the present state, owned by the last change of state; an end state is never replaced."""
PRIORITIZED: Final = Upsert(Experiments, prefix="prioritized", owns=("prioritized",), rule=Rule.LAST)
"""Upsert of the column of the last changed priority."""
STARTED: Final = Upsert(Experiments, prefix="started")
"""Upsert of the columns owned by the first start."""
FORKED: Final = Upsert(Experiments, prefix="forked", owns=("parent", "forked_step"))
"""Upsert of the columns owned by `experiment.forked`."""
KEPT_UPSERT: Final = Upsert(
    Experiments,
    prefix="kept",
    owns=("kept", "kept_path", "kept_reason"),
    rule=Rule.LAST,
    final=("kept", (Kept.REMOVED.value,)),
)
"""Upsert of the columns of the files' whereabouts, owned by the last change; a removal is never replaced."""
SIGNAL: Final = Upsert(
    Experiments, prefix="signal", owns=("signal_cause", "signal_reason", "signal_step"), rule=Rule.LAST
)
"""Upsert of the columns of the learning signal, owned by the last loss or return."""
STAGE: Final = Upsert(
    Stages,
    prefix="submitted",
    owns=("name", "kind", "algorithm", "total_steps", "batch_size", "train_batch_size"),
)
"""Upsert of the columns of a stage owned by the submission."""
STAGE_STARTED: Final = Upsert(Stages, prefix="started", owns=("first_version",))
"""Upsert of the columns owned by the stage's start."""
STAGE_COMPLETED: Final = Upsert(Stages, prefix="completed", owns=("last_version",))
"""Upsert of the columns owned by the stage's end."""
STAGE_BEST: Final = Upsert(
    Stages,
    prefix="best",
    owns=("best_version", "best_figure", "best_value", "best_base", "best_kept"),
    rule=Rule.LAST,
)
"""Upsert of the columns of the best checkpoint, owned by the last choice."""
STAGE_STOPPED: Final = Upsert(Stages, prefix="stopped", owns=("stopped_by", "stopped_reason"))
"""Upsert of the columns owned by an early stop."""
WARNED: Final = Upsert(Warnings, prefix="warned", owns=("text",))
"""Upsert of the columns of a warning."""
MOVED: Final = Upsert(Transitions, prefix="moved", owns=("change", "code", "reason", "step"))
"""Upsert of the columns of a change of state, a row each."""

NOTED: Final = Upsert(RunNotes, prefix="noted", owns=("experience", "text", "author"))
"""Upsert of the columns of a note, a row each."""
STARRED: Final = Upsert(Annotations, prefix="starred", owns=("starred",), rule=Rule.LAST)
"""Upsert of the column of the star, owned by the last change."""
LABELLED: Final = Upsert(Annotations, prefix="labelled", owns=("labels",), rule=Rule.LAST)
"""Upsert of the column of the labels, owned by the last change."""


def _put_submission(event: experiment.ExperimentSubmitted, decoded: Decoded, changes: Changes) -> None:
    """Adds the rows of an experiment, its stages and its warnings."""
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


def _put_state(
    decoded: Decoded, changes: Changes, status: Status, *, code: str = "", reason: str = "", role: str = ""
) -> None:
    """Sets the present state, and adds the change to the history."""
    changes.put(
        STATE,
        decoded,
        id=owner_of(decoded),
        state=status.value,
        state_code=code,
        state_reason=reason,
        state_role=role,
    )
    _put_transition(decoded, changes, status.value, code=code, reason=reason)


def _put_transition(
    decoded: Decoded, changes: Changes, change: str, *, code: str = "", reason: str = "", step: int | None = None
) -> None:
    """Adds a change to the experiment's history."""
    owner = owner_of(decoded)
    changes.put(
        MOVED, decoded, experiment=owner, number=decoded.offset, change=change, code=code, reason=reason, step=step
    )


def _put_accepted(event: experiment.ExperimentAccepted, decoded: Decoded, changes: Changes) -> None:
    """Sets the state to queued."""
    _put_state(decoded, changes, Status.QUEUED)


def _put_rejected(event: experiment.ExperimentRejected, decoded: Decoded, changes: Changes) -> None:
    """Sets the state to rejected, unless the refusal concerns a request without an experiment."""
    if event.request is None:  # else no experiment exists
        _put_state(decoded, changes, Status.REJECTED, code=event.code, reason=event.reason)


def _put_priority(event: experiment.ExperimentPrioritized, decoded: Decoded, changes: Changes) -> None:
    """Sets the priority."""
    changes.put(PRIORITIZED, decoded, id=owner_of(decoded), prioritized=event.priority)


def _put_annotation(event: experiment.ExperimentAnnotated, decoded: Decoded, changes: Changes) -> None:
    """Adds a note, and sets star and labels, of an experiment or an experience."""
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


def _put_started(event: experiment.ExperimentStarted, decoded: Decoded, changes: Changes) -> None:
    """Records the first start, and sets the state to running."""
    changes.put(STARTED, decoded, id=owner_of(decoded))
    _put_state(decoded, changes, Status.RUNNING)


def _put_paused(event: experiment.ExperimentPaused, decoded: Decoded, changes: Changes) -> None:
    """Sets the state to paused, with cause and reason."""
    _put_state(decoded, changes, Status.PAUSED, code=event.cause, reason=event.reason)


def _put_resumed(event: experiment.ExperimentResumed, decoded: Decoded, changes: Changes) -> None:
    # The event's own reason, such as `refused: tried again`, is about a pause that is over.
    """Sets the state to queued or running, without a reason."""
    _put_state(decoded, changes, Status.QUEUED if event.queued else Status.RUNNING)


def _put_cancelled(event: experiment.ExperimentCancelled, decoded: Decoded, changes: Changes) -> None:
    """Sets the state to cancelled."""
    _put_state(decoded, changes, Status.CANCELLED, reason=event.reason)


def _put_completed(event: experiment.ExperimentCompleted, decoded: Decoded, changes: Changes) -> None:
    """Sets the state to completed."""
    _put_state(decoded, changes, Status.COMPLETED)


def _put_failed(event: experiment.ExperimentFailed, decoded: Decoded, changes: Changes) -> None:
    """Sets the state to failed, with code, reason and role."""
    _put_state(decoded, changes, Status.FAILED, code=event.code, reason=event.reason, role=event.role)


def _put_warning(event: experiment.ExperimentWarned, decoded: Decoded, changes: Changes) -> None:
    """Adds a warning."""
    changes.put(WARNED, decoded, experiment=owner_of(decoded), origin="warned", number=decoded.offset, text=event.text)


def _put_fork(event: experiment.ExperimentForked, decoded: Decoded, changes: Changes) -> None:
    """Records the parent and the shared step."""
    changes.put(FORKED, decoded, id=owner_of(decoded), parent=event.parent.bytes, forked_step=event.at_step)


def _put_archived(event: experiment.ExperimentArchived, decoded: Decoded, changes: Changes) -> None:
    """Records the path of the archive."""
    _put_kept(decoded, changes, Kept.ARCHIVED, path=event.path)


def _put_restored(event: experiment.ExperimentRestored, decoded: Decoded, changes: Changes) -> None:
    """Records that the files are back."""
    _put_kept(decoded, changes, Kept.HERE, path=event.path)


def _put_removed(event: experiment.ExperimentRemoved, decoded: Decoded, changes: Changes) -> None:
    """Records that the files were deleted."""
    _put_kept(decoded, changes, Kept.REMOVED, reason=event.reason)


def _put_kept(decoded: Decoded, changes: Changes, location: Kept, *, path: str = "", reason: str = "") -> None:
    """Sets the whereabouts of the files."""
    changes.put(KEPT_UPSERT, decoded, id=owner_of(decoded), kept=location.value, kept_path=path, kept_reason=reason)


def _put_signal_lost(event: SignalLost, decoded: Decoded, changes: Changes) -> None:
    """Records the lost learning signal with its fix, and adds the change to the history."""
    changes.put(
        SIGNAL,
        decoded,
        id=owner_of(decoded),
        signal_cause=event.cause,
        signal_reason=f"{event.reason}; fix: {event.fix}",
        signal_step=event.step,
    )
    _put_transition(decoded, changes, "signal_lost", code=event.cause, reason=event.reason, step=event.step)


def _put_signal_regained(event: SignalRegained, decoded: Decoded, changes: Changes) -> None:
    """Clears the lost learning signal, and adds the change to the history."""
    changes.put(SIGNAL, decoded, id=owner_of(decoded), signal_cause="", signal_reason="", signal_step=event.step)
    _put_transition(decoded, changes, "signal_regained", step=event.step)


def _put_stage_started(event: experiment.StageStarted, decoded: Decoded, changes: Changes) -> None:
    """Records a stage's start."""
    changes.put(
        STAGE_STARTED, decoded, experiment=owner_of(decoded), stage=event.stage, first_version=event.first_version
    )


def _put_stage_completed(event: experiment.StageCompleted, decoded: Decoded, changes: Changes) -> None:
    """Records a stage's end."""
    changes.put(
        STAGE_COMPLETED, decoded, experiment=owner_of(decoded), stage=event.stage, last_version=event.last_version
    )


def _put_best_checkpoint(event: CheckpointChosen, decoded: Decoded, changes: Changes) -> None:
    """Records a stage's best checkpoint."""
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


def _put_stage_stopped(event: StageStopped, decoded: Decoded, changes: Changes) -> None:
    """Records the early stop of a stage."""
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
        experiment.ExperimentSubmitted: _put_submission,
        experiment.ExperimentAccepted: _put_accepted,
        experiment.ExperimentRejected: _put_rejected,
        experiment.ExperimentPrioritized: _put_priority,
        experiment.ExperimentAnnotated: _put_annotation,
        experiment.ExperimentStarted: _put_started,
        experiment.ExperimentPaused: _put_paused,
        experiment.ExperimentResumed: _put_resumed,
        experiment.ExperimentCancelled: _put_cancelled,
        experiment.ExperimentCompleted: _put_completed,
        experiment.ExperimentFailed: _put_failed,
        experiment.ExperimentWarned: _put_warning,
        experiment.ExperimentForked: _put_fork,
        experiment.ExperimentArchived: _put_archived,
        experiment.ExperimentRestored: _put_restored,
        experiment.ExperimentRemoved: _put_removed,
        SignalLost: _put_signal_lost,
        SignalRegained: _put_signal_regained,
        experiment.StageStarted: _put_stage_started,
        experiment.StageCompleted: _put_stage_completed,
        CheckpointChosen: _put_best_checkpoint,
        StageStopped: _put_stage_stopped,
    },
)
"""Projection of experiments with their stages, notes, stars, labels, changes of state and warnings."""
