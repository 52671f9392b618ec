"""The life of an experiment and of its stages, on the spine. Written by the controller, who holds its lease."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

import msgspec

from rftd.streams.events.registry import CONTROLLER, NOBODY, Event, event
from rftd.streams.log import topics
from rftd.streams.log.bounds import Bytes, Count, Epoch, Index, Integer, Nanoseconds, Offset
from rftd.streams.log.log_place import HEADS, HISTORY, START
from rftd.streams.log.stored_path import OwnPath
from rftd.streams.spec.spec import ExperimentSpec


class HeadRef(msgspec.Struct, frozen=True, array_like=True):
    """A remembered head of one partition."""

    stream: str
    partition: Index
    next_offset: Offset
    chain: bytes


class LostHead(msgspec.Struct, frozen=True, array_like=True):
    """A remembered head that is not in the log any more."""

    stream: str
    partition: Index
    next_offset: Offset
    chain: bytes
    by: str
    """The survivor that remembers it, in words."""
    end: Offset
    """The end of the partition when that was noticed; beyond `next_offset` another record is in the place."""

    @property
    def ref(self) -> HeadRef:
        """The head alone, to be compared."""
        return HeadRef(self.stream, self.partition, self.next_offset, self.chain)


class FolderMove(msgspec.Struct, frozen=True, array_like=True):
    """A folder that an import moved, and the folder in its place."""

    old: str
    new: str


@event("experiment.submitted", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentSubmitted(Event, frozen=True, kw_only=True):
    """A client handed in an experiment. Its event id is the request id, so a retry changes nothing.

    A second one of the same experiment brings its other half, if only that is new in its specification.
    """

    spec: ExperimentSpec
    by: str = ""
    """The name of the token that submitted it; so in every command below."""
    role: str = ""
    """The role of that token. A submission of any role but `owner` names only what the configuration allowed."""
    moves: tuple[tuple[FolderMove, ...], ...] = ()
    """The folders that each import of the experiment moved, the first import's first.

    The specification has its paths moved; the file in `spec.config` has them as they were written.
    """


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A name in a specification that the daemon's configuration allowed when it was accepted."""

    kind: str
    """The allow-list: `roots`, `allow_env`, `secrets`, `allow_urls` or `allow_code`."""
    value: str


@event("experiment.accepted", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentAccepted(Event, frozen=True, kw_only=True):
    """It waits for its turn; nothing of it lies below `start`, so its readers begin there."""

    # The heads of the whole log: the daemon notes them before its first append about the experiment.
    start: Annotated[tuple[HeadRef, ...], START]
    grants: tuple[Grant, ...] = ()
    """The verdict on a submission that is not the owner's; never judged anew, and held against the configuration
    each time that workers are started."""


class RequestRef(msgspec.Struct, frozen=True, kw_only=True):
    """The record by which another program asked for something; see `rftd.streams.log.requests`."""

    place: str
    """`stream/partition@offset`."""
    type: str
    """The type that it has, as far as it can be read; so with the others."""
    source: str
    id: str


@event("experiment.rejected", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentRejected(Event, frozen=True, kw_only=True):
    """It cannot run on this daemon, or what another program asked for by a record was refused.

    With a `request` it is the answer to that record alone: its experiment is one that never was, and no other changes.
    """

    code: str
    reason: str
    request: RequestRef | None = None


@event("experiment.warned", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentWarned(Event, frozen=True, kw_only=True):
    """Something was changed or ignored that its owner should know."""

    text: str


@event("experiment.prioritized", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentPrioritized(Event, frozen=True, kw_only=True):
    """Its owner changed its priority: of those that wait for their turn, the highest goes first."""

    priority: Integer
    reason: str = ""
    by: str = ""


@event("experiment.started", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentStarted(Event, frozen=True, kw_only=True):
    """Its workers are being started, for the first time or after they were released."""


@event("experiment.paused", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentPaused(Event, frozen=True, kw_only=True):
    """No lease and no plan is made until it is resumed; rollouts and the step under way finish."""

    reason: str = ""
    by: str = ""
    cause: str = ""
    """The cause; empty for a command. A pause for `disk_full` or `disk_budget` ends once there is more space."""


@event("experiment.resumed", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentResumed(Event, frozen=True, kw_only=True):
    """It goes on."""

    reason: str = ""
    by: str = ""
    queued: bool = False
    """No run had it, as after a release: it waits for its turn, and is then started once more."""


@event("experiment.seen", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentSeen(Event, frozen=True, kw_only=True):
    """Somebody looked at it. Written now and then, where `limits.unseen_days` asks for it."""

    by: str = ""
    """The name of the token."""


@event("experiment.released", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentReleased(Event, frozen=True, kw_only=True):
    """Its workers have left after a pause that only a person ends; it has no slot, and needs no memory any more."""


@event("experiment.cancelled", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentCancelled(Event, frozen=True, kw_only=True):
    """Its owner ended it; what it produced stays."""

    reason: str = ""
    by: str = ""


@event("experiment.completed", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentCompleted(Event, frozen=True, kw_only=True):
    """Every stage is done and the last checkpoint is committed."""


@event("experiment.failed", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class ExperimentFailed(Event, frozen=True, kw_only=True):
    """It cannot go on; `code` and `reason` say why, and `role` where it was seen."""

    code: str
    reason: str
    role: str = ""


@event("experiment.forked", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentForked(Event, frozen=True, kw_only=True):
    """This experiment shares the history of `parent` up to weight version `at_step`, and goes on from there.

    Written before it is accepted. Its own steps, plans and groups begin after the shared ones.
    """

    parent: UUID
    at_step: Index
    checksum: str
    """The checksum of the weights at `at_step`, as in the parent's step.completed; for step 0 that of the base."""
    stage: Index
    """The stage that `at_step` lies in."""
    first_versions: tuple[Index, ...]
    """The weight versions at which each stage up to that one began."""
    decided_at_ns: Nanoseconds
    """The last clock reading that the shared history recorded (rule 9)."""
    next_sequence: Index = 0
    """The sequence at which that stage goes on: the groups below were settled in the shared history, but for `redo`.

    For a stage that trains on a dataset, the rows that the shared steps took.
    """
    redo: tuple[Index, ...] = ()
    """Groups below it that were open or waited when batch `at_step` was planned: they are given out again here."""
    evaluated: tuple[Index, ...] = ()
    """Tasksets that the parent has answered with the weights of `at_step`, in the stage that goes on from them."""

    def fits(self, spec: ExperimentSpec) -> bool:
        """True if what it shares are stages of the specification; else it says nothing that could be gone on from."""
        return 0 <= self.stage < min(len(spec.stages), len(self.first_versions))


@event("experiment.archived", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentArchived(Event, frozen=True, kw_only=True):
    """Its files are in an archive, and only there; its events stay in the log."""

    path: OwnPath
    size_bytes: Bytes
    sha256: str
    by: str = ""


@event("experiment.restored", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentRestored(Event, frozen=True, kw_only=True):
    """Its files are back in its folder."""

    path: OwnPath
    """The archive that they came from."""
    by: str = ""


@event("experiment.imported", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class ExperimentImported(Event, frozen=True, kw_only=True):
    """Its records and files came from an exported file. Like the places in a log, this is not exported again."""

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
    """Its files are gone, and it is left out of lists; its events stay in the log."""

    reason: str = ""
    by: str = ""


@event("experiment.payloads_dropped", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class PayloadsDropped(Event, frozen=True, kw_only=True):
    """The log has let go of the token arrays of some experiences; their records and digests stay.

    Written once it is done. Said again after a crash.
    """

    reason: str
    """`archived` or `removed` like the experiment's files, `ended`, `trained`, or by rule `age` or `size`."""
    records: Count
    """Records that are without their payload now."""
    size_bytes: Integer
    """Bytes by which those records became shorter."""
    through_step: Index = 0
    """The last step whose trained groups lost their payload; 0: the whole experiment did."""


@event("experiment.loss_accepted", stream=topics.EXPERIMENTS, owner=CONTROLLER, commanded=True)
class LossAccepted(Event, frozen=True, kw_only=True):
    """A person lets it go on although the log has lost what survivors remember; `rftd verify` shows it for ever."""

    lost: Annotated[tuple[LostHead, ...], HISTORY]
    by: str
    """The person."""
    reason: str = ""


@event("stage.started", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class StageStarted(Event, frozen=True, kw_only=True):
    """Batches of this stage may be planned; its first step makes weight version `first_version` + 1."""

    stage: Index
    name: str
    first_version: Index


@event("stage.completed", stream=topics.EXPERIMENTS, owner=CONTROLLER)
class StageCompleted(Event, frozen=True, kw_only=True):
    """All its steps are executed, evaluated and checkpointed."""

    stage: Index
    last_version: Index


# Nobody owns it: who writes it is about to become the owner of another role, and its own fields say whether it counts.
@event("fence", stream=topics.EXPERIMENTS, owner=NOBODY, anywhere=True)
class Fence(Event, frozen=True, kw_only=True):
    """A new owner of `role` in the partition that holds this record (rule 2).

    It has effect only if `previous` is the role's epoch at this place; then later records of the role with an
    epoch below `epoch` have none.
    """

    role: str
    epoch: Epoch
    previous: Epoch
    owner: UUID
    heads: Annotated[tuple[HeadRef, ...], HEADS] = ()


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
"""Events that change the state: without effect once it is over, for a daemon may ask while another one ends it."""
