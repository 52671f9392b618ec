"""The life of an experiment and of its stages, on the spine. Written by the controller, the holder of its lease."""

from __future__ import annotations

import re
from typing import Annotated, Final
from uuid import UUID

import msgspec

from rftd.streams.events.registry import CONTROLLER, NOBODY, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Bytes, Count, Epoch, Finite, Index, Integer, Nanoseconds, Offset
from rftd.streams.log.marked import HEADS, HISTORY, START, OwnPath
from rftd.streams.spec.spec import ExperimentSpec

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
"""Form of a sha256 in hex."""


class HeadRef(msgspec.Struct, frozen=True, array_like=True):
    """A remembered head of one partition: the next offset and the chain of the record before."""

    stream: str
    """Stream of the partition."""
    partition: Index
    """Number of the partition."""
    next_offset: Offset
    """Offset of the next record."""
    chain: bytes
    """Chain value of the record before the position."""


class LostHead(msgspec.Struct, frozen=True, array_like=True):
    """A remembered head missing from the log, with the survivor remembering it and the present end of the partition."""

    stream: str
    """Stream of the partition."""
    partition: Index
    """Number of the partition."""
    next_offset: Offset
    """Offset of the next record."""
    chain: bytes
    """Chain value of the record before the position."""
    by: str
    """The survivor remembering the head, in words."""
    end: Offset
    """The end of the partition when the loss was noticed; beyond `next_offset`, another record is at the position."""

    @property
    def ref(self) -> HeadRef:
        """The head without survivor and end, for comparisons with other remembered heads."""
        return HeadRef(self.stream, self.partition, self.next_offset, self.chain)


class FolderMove(msgspec.Struct, frozen=True, array_like=True):
    """A folder moved by an import, and its new path."""

    old: str
    """Path before the import."""
    new: str
    """Path after the import."""


@event("experiment.submitted", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentSubmitted(Event, frozen=True, kw_only=True):
    """The submission of an experiment by a client. The event id is the request id, so a retry changes nothing.

    A second submission of an experiment adds the other half, if nothing else in the specification is new.
    """

    spec: ExperimentSpec
    """The resolved specification."""
    by: str = ""
    """The name of the submitting token; likewise in every command below."""
    role: str = ""
    """The role of the token. A submission of any role but `owner` names only resources allowed by the configuration."""
    moves: tuple[tuple[FolderMove, ...], ...] = ()
    """The folders moved by each import of the experiment, in the order of the imports.

    The specification has its paths moved; the file in `spec.config` has them as originally written.
    """


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A name in a specification, allowed by the daemon's configuration at acceptance."""

    kind: str
    """The allow-list: `roots`, `allow_env`, `secrets`, `allow_urls` or `allow_code`."""
    value: str
    """The allowed name."""


@event("experiment.accepted", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentAccepted(Event, frozen=True, kw_only=True):
    """The acceptance of an experiment, now queued. No record of the experiment lies below `start`, so readers begin
    there.
    """

    # The heads of the whole log: the daemon notes them before its first append about the experiment.
    start: Annotated[tuple[HeadRef, ...], START]
    """Heads of the log before the first record about the experiment, as noted by the daemon."""
    grants: tuple[Grant, ...] = ()
    """The verdict on a submission of any role but the owner; never judged anew, and compared with the configuration at
    each start of workers.
    """
    tokenizers: tuple[str, ...] = ()
    """The sha256 of each stage's tokenizer.json, copied to the artifacts; empty for a stage without a copy."""

    def __post_init__(self) -> None:
        # Names of files: a record of anybody must not name others.
        for sha256 in self.tokenizers:
            if sha256 and not _SHA256.fullmatch(sha256):
                raise ValueError(f"{sha256!r} is no sha256")


class RequestRef(msgspec.Struct, frozen=True, kw_only=True):
    """The record of another program's request; see `rftd.streams.log.requests`."""

    place: str
    """`stream/partition@offset`."""
    type: str
    """The request's type, as far as it is readable; likewise for the other fields."""
    source: str
    """Source of the request."""
    id: str
    """Id of the request, given by the source of the request."""


@event("experiment.rejected", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentRejected(Event, frozen=True, kw_only=True):
    """The rejection of an experiment by this daemon, or of another program's request.

    With a `request`, the answer to the one record alone: the named experiment never existed, and no other experiment
    changes.
    """

    code: str
    """Code of the error because of which the experiment or the request was rejected."""
    reason: str
    """Reason for the rejection of the experiment or the request, in words for people."""
    request: RequestRef | None = None
    """The refused request; None for a submission."""


@event("experiment.warned", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentWarned(Event, frozen=True, kw_only=True):
    """A warning for the owner about a changed or ignored setting."""

    text: str
    """Text of the warning."""


@event("experiment.prioritized", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentPrioritized(Event, frozen=True, kw_only=True):
    """A new priority set by the owner: of the queued experiments, the one with the highest priority starts first."""

    priority: Integer
    """The new priority; the highest starts first."""
    reason: str = ""
    """Reason for the new priority, as given by the person; empty without one."""
    by: str = ""
    """Name of the token used by the person."""


@event("experiment.annotated", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentAnnotated(Event, frozen=True, kw_only=True):
    """A note, a star or the labels of an experiment or of one of its rollouts, by a person; nothing else changes."""

    experience: UUID | None = None
    """The annotated rollout; None for the experiment."""
    note: str = ""
    """A further note; empty: none is added."""
    star: bool | None = None
    """Sets or removes the star; None leaves it."""
    labels: dict[str, str] | None = None
    """The whole set of labels; None leaves them."""
    by: str = ""
    """Name of the token used by the person."""


@event("experiment.started", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentStarted(Event, frozen=True, kw_only=True):
    """The start of the experiment's workers, for the first time or after a release of slot and memory."""


@event("experiment.paused", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentPaused(Event, frozen=True, kw_only=True):
    """A pause: nothing is leased or planned until the experiment is resumed; running rollouts and the current step
    finish.
    """

    reason: str = ""
    """Reason for the pause, in words for people; empty without one."""
    by: str = ""
    """Name of the token used by the person."""
    cause: str = ""
    """The cause; empty for a command. A pause for `disk_full` or `disk_budget` ends once there is more space."""


@event("experiment.resumed", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentResumed(Event, frozen=True, kw_only=True):
    """The end of a pause: leases and plans are made again, at once or after a wait in the queue."""

    reason: str = ""
    """Reason for the end of the pause, in words for people; empty without one."""
    by: str = ""
    """Name of the token used by the person."""
    queued: bool = False
    """True if no run had the experiment, as after a release: it is queued, and then started once more."""


@event("experiment.seen", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentSeen(Event, frozen=True, kw_only=True):
    """A view of the experiment by a person. Written now and then, if `limits.unseen_days` is set."""

    by: str = ""
    """The name of the token."""


@event("experiment.released", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentReleased(Event, frozen=True, kw_only=True):
    """The release of slot and memory: all workers have left, during a pause that only a person can end."""


@event("experiment.cancelled", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentCancelled(Event, frozen=True, kw_only=True):
    """The end of the experiment by its owner; checkpoints, experiences and records stay."""

    reason: str = ""
    """Reason for the cancellation, in words for people; empty without one."""
    by: str = ""
    """Name of the token used by the person."""


@event("experiment.completed", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentCompleted(Event, frozen=True, kw_only=True):
    """The regular end: every stage is done and the last checkpoint is committed."""


@event("experiment.failed", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentFailed(Event, frozen=True, kw_only=True):
    """The failure of the experiment: `code` and `reason` state the cause, and `role` the place of its detection."""

    code: str
    """Code of the error that made the experiment fail."""
    reason: str
    """Text of the error that made the experiment fail."""
    role: str = ""
    """Role that detected the failure."""


@event("experiment.forked", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentForked(Event, frozen=True, kw_only=True):
    """A fork: this experiment shares the history of `parent` up to weight version `at_step`, and continues from there.

    Written before the acceptance of the fork. Steps, plans and groups of the fork begin after the shared ones.
    """

    parent: UUID
    """Id of the parent."""
    at_step: Index
    """Last weight version shared with the parent."""
    checksum: str
    """The checksum of the weights at `at_step`, as in the parent's step.completed; for step 0, of the base model."""
    stage: Index
    """The stage of `at_step`."""
    first_versions: tuple[Index, ...]
    """The weight versions at the beginning of each stage up to `stage`."""
    decided_at_ns: Nanoseconds
    """The last clock reading recorded in the shared history."""
    next_sequence: Index = 0
    """The first sequence of the fork in its stage: lower groups were settled in the shared history, except `redo`.

    For a stage training on a dataset, the number of rows used by the shared steps.
    """
    redo: tuple[Index, ...] = ()
    """Groups below `next_sequence` open or waiting when batch `at_step` was planned: the fork leases them again."""
    evaluated: tuple[Index, ...] = ()
    """Tasksets already answered by the parent with the weights of `at_step`, in the stage continued by the fork."""

    def fits(self, spec: ExperimentSpec) -> bool:
        """True if the shared stages exist in the specification; else the event cannot be continued from."""
        return 0 <= self.stage < min(len(spec.stages), len(self.first_versions))


@event("experiment.archived", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentArchived(Event, frozen=True, kw_only=True):
    """The move of the experiment's files into an archive; all events stay in the log."""

    path: OwnPath
    """Path of the archive."""
    size_bytes: Bytes
    """Size of the archive in bytes."""
    sha256: str
    """The sha256 of the archive, in hex."""
    by: str = ""
    """Name of the token used by the person."""


@event("experiment.restored", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentRestored(Event, frozen=True, kw_only=True):
    """The return of the experiment's files from an archive to the experiment's folder."""

    path: OwnPath
    """The archive of the files."""
    by: str = ""
    """Name of the token used by the person."""


@event("experiment.imported", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentImported(Event, frozen=True, kw_only=True):
    """The import of records and files from an exported file. A fact about one log, and never exported again."""

    release: str
    """The release of rftd that wrote the file."""
    exported: str
    """The time of the export, ISO 8601."""
    checkpoints_left_out: tuple[tuple[Index, Index], ...] = ()
    """(step, generation) of the kept checkpoints whose files the export left out."""
    weights_left_out: tuple[tuple[Index, Index], ...] = ()
    """(version, generation) of the published weights whose files the export left out."""


@event("experiment.removed", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentRemoved(Event, frozen=True, kw_only=True):
    """The deletion of the experiment's files; lists omit the experiment, and all events stay in the log."""

    reason: str = ""
    """Reason for the removal of the files, in words for people; empty without one."""
    by: str = ""
    """Name of the token used by the person."""


@event("experiment.payloads_dropped", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class PayloadsDropped(Event, frozen=True, kw_only=True):
    """The deletion of the token arrays of experiences from the log; their records and digests stay.

    Written after the deletion. Repeated after a crash.
    """

    reason: str
    """`archived` or `removed` like the experiment's files, `ended`, `trained`, or by rule `age` or `size`."""
    records: Count
    """Number of records without their payload now."""
    size_bytes: Integer
    """Bytes removed from those records."""
    through_step: Index = 0
    """The last step of the trained groups concerned; 0: the whole experiment."""


@event("experiment.loss_accepted", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class LossAccepted(Event, frozen=True, kw_only=True):
    """A person's decision to continue although the log has lost records remembered by survivors; `rftd verify` shows
    the loss for ever.
    """

    lost: Annotated[tuple[LostHead, ...], HISTORY]
    """The lost heads."""
    by: str
    """The deciding person."""
    reason: str = ""
    """Reason for accepting the loss, as given by the person; empty without one."""


@event("stage.started", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class StageStarted(Event, frozen=True, kw_only=True):
    """The beginning of a stage: its batches may be planned; its first step makes weight version `first_version` + 1."""

    stage: Index
    """Index of the stage in the specification."""
    name: str
    """Name of the stage."""
    first_version: Index
    """Weight version before the stage's first step."""


@event("stage.completed", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class StageCompleted(Event, frozen=True, kw_only=True):
    """The end of a stage: all steps of the stage are executed, evaluated and checkpointed."""

    stage: Index
    """Index of the stage in the specification."""
    last_version: Index
    """Last weight version of the stage."""


# Owned by nobody: its writer is about to become the owner of another role, and its own fields decide its effect.
@event("fence", stream=topics.EXPERIMENTS, owner=NOBODY, anywhere=True)
class Fence(Event, frozen=True, kw_only=True):
    """A new owner of `role` in the partition of this record.

    Effective only if `previous` is the role's epoch at the fence's position; later records of the role with an epoch
    below `epoch` then have no effect.
    """

    role: str
    """Name of the role."""
    epoch: Epoch
    """Epoch of the new owner."""
    previous: Epoch
    """Epoch of the role before the fence."""
    owner: UUID
    """Id of the new owner."""
    heads: Annotated[tuple[HeadRef, ...], HEADS] = ()
    """Heads of the whole log before the fence, in the first fence of a takeover; empty in its other fences."""


TURNS: Final = (
    ExperimentAccepted,
    ExperimentRejected,
    ExperimentStarted,
    ExperimentPaused,
    ExperimentReleased,
    ExperimentResumed,
    ExperimentCancelled,
    ExperimentCompleted,
    ExperimentFailed,
)
"""Events that change an experiment's state, and have no effect after its end."""


@event("checkpoint.chosen", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class CheckpointChosen(Event, frozen=True, kw_only=True):
    """The checkpoint of `version` is the best of its stage by its evaluation; written whenever the set of kept ones
    changes.
    """

    number: Index
    """Number of the choice in its experiment, from 1; a repeated number has no effect."""
    stage: Index
    """Index of the stage in the specification."""
    version: Index
    """Weight version."""
    generation: Index
    """The generation of the evaluated weights."""
    figure: str
    """`eval/TASKSET/FIGURE`."""
    value: Finite
    """Value of the figure."""
    before: Finite | None = None
    """The best value until then, equal to `value` if only other kept checkpoints changed; None without an earlier
    choice.
    """
    base: Finite | None = None
    """The value of the stage's first weights, if they were evaluated."""
    kept: tuple[Index, ...]
    """The versions whose checkpoints are kept for their evaluation, the best first."""


@event("stage.stopped", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class StageStopped(Event, frozen=True, kw_only=True):
    """The early end of a stage, after `last_version` or, if later, the last planned batch."""

    stage: Index
    """Index of the stage in the specification."""
    last_version: Index
    """Weight version after which the stage ends, unless a later batch was planned already."""
    version: Index
    """The version whose evaluation decided the stop."""
    figure: str
    """Name of the deciding figure."""
    value: Finite | None
    """The deciding figure; None if it was not a number."""
    cause: str
    """`bound`, `patience` or `rule`."""
    reason: str
    """Reason for the early end of the stage, in words for people."""


@event("signal.lost", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class SignalLost(Event, frozen=True, kw_only=True):
    """The loss of the learning signal from batch `step` on, with its cause; written once per change of cause."""

    number: Index
    """Number of the change (loss or return) in its experiment, from 1; a repeated number has no effect."""
    stage: Index
    """Index of the stage in the specification."""
    step: Index
    """The first batch without a learning signal; of one that cannot be formed, its step."""
    cause: str
    """A name of `CAUSES` in `streams/folds/signal.py`."""
    reason: str
    """Cause of the lost learning signal, in words for people."""
    fix: str
    """Advice on how to regain the learning signal, in words for people."""


@event("signal.regained", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class SignalRegained(Event, frozen=True, kw_only=True):
    """The return of the learning signal with batch `step`."""

    number: Index
    """Number of the change (loss or return) in its experiment, from 1; a repeated number has no effect."""
    stage: Index
    """Index of the stage in the specification."""
    step: Index
    """The first batch with a learning signal."""
