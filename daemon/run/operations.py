"""`Operations`: a daemon's commands for the HTTP API and, through that, the CLI. Reads go to `storage.queries`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgspec

from rftd.daemon.run.dlq.letter import Dead, DeadLetterReceipt
from rftd.daemon.run.why.pause import PauseState
from rftd.daemon.run.why.under_way import WorkUnderWay
from rftd.daemon.run.why.wait import Wait, Why
from rftd.daemon.serve.keeping import Keeping
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.asker import Asker
from rftd.ops.errors import LogLossError
from rftd.streams.events.experiment import HeadRef
from rftd.streams.events.sweep import Halving, SweepPoint
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.spine import Kept, Spine, Status
from rftd.streams.folds.sweeps import RecordedSweep
from rftd.streams.log.envelope import Position
from rftd.streams.spec.engines import WorkerMemory
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.control.budgets import Spent
from rftd.workers.devices.host import Host
from rftd.workers.tracking.cursor import Cursor


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """Receipt of a submission recorded in the log, with the warnings of its checks."""

    experiment: UUID
    """Id of the new experiment."""
    name: str
    """Name of the new experiment, maybe with a number or time stamp appended."""
    event: UUID
    """Id of experiment.submitted."""
    position: Position
    """Position for `after`: a read after this position sees the submission."""
    warnings: tuple[str, ...]
    """Warnings of the submission's checks."""


class Forked(Accepted, frozen=True, kw_only=True):
    """Receipt of a fork recorded in the log, with the step shared with its parent."""

    parent: UUID
    """The experiment sharing its history with the fork."""
    at_step: int
    """Last weight version shared with the parent."""


class Annotation(NamedTuple):
    """A note, a star or labels for an experiment or one of its rollouts."""

    experience: UUID | None
    """The rollout; None for the experiment."""
    note: str
    """Text to add; empty adds none."""
    star: bool | None
    """Sets or removes the star; None leaves it."""
    labels: dict[str, str] | None
    """The whole set of labels; None leaves them."""


class StandingRun(NamedTuple):
    """A submitted run of a sweep, with the status of its experiment."""

    point: int
    """Index of the run's point in the sweep, from 0."""
    experiment: UUID
    """Id of the run's experiment."""
    status: Status
    """Present status of the run's experiment."""


class StandingSweep(NamedTuple):
    """A recorded sweep with the present status of each submitted run."""

    sweep: RecordedSweep
    """The sweep as recorded in the log."""
    runs: tuple[StandingRun, ...]
    """The runs submitted so far."""
    over: bool
    """True if no run of the sweep is queued, running or still to be submitted."""


class Done(NamedTuple):
    """Receipt of a command recorded in the log: its event and position."""

    event: UUID
    """Id of the event recording the command."""
    position: Position
    """Position for `after`: a read after this position sees the command's effect."""


class TextOrigin(NamedTuple):
    """The origin of an experiment's texts: its specification, and the copies of its tokenizers."""

    spec: ExperimentSpec
    """Specification as submitted."""
    tokenizers: tuple[str, ...]
    """The sha256 of each stage's copy; see experiment.accepted."""
    kept: Kept
    """State of the experiment's files: in its folder, archived or removed."""
    start: tuple[HeadRef, ...] = ()
    """The heads of the log before the first record of the experiment."""
    payloads_dropped: bool = False
    """True if the payloads of all experiences were dropped from the log."""
    payloads_dropped_through: int = 0
    """Last step up to which payloads of trained experiences were dropped; 0: none were."""

    @classmethod
    def of(cls, spine: Spine) -> TextOrigin | None:
        """Returns the origin in a folded spine; None without a submission."""
        if spine.spec is None:
            return None
        dropped = spine.payloads_dropped, spine.payloads_dropped_through
        return cls(spine.spec, spine.tokenizers, spine.kept, spine.start, *dropped)


class WantedSweep(msgspec.Struct, frozen=True):
    """A sweep as requested by a client, before its runs have names. See `Operations.sweep`."""

    config: dict[str, Any]
    """Configuration shared by all runs, before their changes."""
    points: tuple[SweepPoint, ...]
    """Changes and seed of each run."""
    name: str | None
    """Requested name; None: the configuration's name."""
    at_once: int | None
    """Maximum number of concurrent runs; None: the daemon's slots."""
    halving: Halving | None = None
    """Rule for ending the worse half of the runs at evaluations; None: every run trains to its end."""


class SweepTaken(NamedTuple):
    """Receipt of a sweep recorded in the log, with the present status of its runs."""

    standing: StandingSweep
    """The sweep with the status of its runs."""
    done: Done
    """Event and position of the recorded command."""


class Operations(Protocol):
    """The commands of a daemon; a command returns only after the log has recorded its event under a valid lease.

    `request_id` is the caller's key: a command repeated under its key changes nothing and returns the first answer, on
    any daemon of the log. All commands raise ReusedKeyError (naming the earlier command and its time) if the key was
    used for another command, and NotAllowedError for actions or names forbidden to the asker.
    """

    def for_asker(self, asker: Asker) -> Operations:
        """Returns a view of these commands that checks the asker's rights and records the asker's name in events."""
        ...

    def rehearsing(self) -> Operations:
        """Returns a view of these commands raising `Rehearsed`, with the consequence, in place of the first append.

        All checks of the commands are made: an illegal command has its usual error.
        """
        ...

    async def submit(self, config: dict[str, Any], *, request_id: UUID) -> Accepted:
        """Submits an experiment: validates the configuration, inspects model and datasets, and appends the event.

        `config` is the client's normalised configuration (`rftd.daemon.config`). Raises ConfigError, DataError (nothing
        was appended), ConflictError (the experiment's folder is in use).
        """
        ...

    async def check(self, config: dict[str, Any]) -> ExperimentSpec:
        """Returns the specification that `submit` would append, after the checks of `submit`; appends nothing. Raises
        as `submit`.
        """
        ...

    async def fork(
        self,
        experiment: UUID,
        *,
        at_step: int,
        overrides: Sequence[str],
        name: str | None,
        labels: dict[str, str],
        request_id: UUID,
    ) -> Forked:
        """Submits an experiment continuing from weight version `at_step` of another one, with changes.

        `overrides` are `key=value`, as for `submit -s`. The default name is PARENT-fork-STEP. Raises NotFoundError,
        ConfigError, DataError (nothing was appended), ConflictError (the step was not executed, or the fork's folder is
        in use).
        """
        ...

    async def sweep(self, request: WantedSweep, *, request_id: UUID) -> SweepTaken:
        """Submits a sweep: every run is checked as by `submit`, and none begins if one is refused.

        Raises as `submit`, and ConflictError for a sweep of the same name.
        """
        ...

    async def sweeps(self) -> list[StandingSweep]:
        """Returns every sweep ever submitted, in the order of the log."""
        ...

    async def sweep_named(self, name_or_id: str) -> StandingSweep:
        """Returns the sweep with this name or id. Raises NotFoundError, UsageError."""
        ...

    async def cancel_sweep(self, sweep: UUID, *, reason: str, request_id: UUID) -> Done:
        """Cancels a sweep and its runs before their end. Raises NotFoundError, ConflictError for an ended sweep."""
        ...

    async def pause(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Pauses a running experiment. Raises NotFoundError, ConflictError (with the experiment's state)."""
        ...

    async def resume(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Resumes a paused experiment. Raises as `pause`."""
        ...

    async def cancel(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Ends a queued, running or paused experiment for good. Raises as `pause`."""
        ...

    async def prioritize(self, experiment: UUID, *, priority: int, reason: str, request_id: UUID) -> Done:
        """Changes the priority of an experiment before its end; the queue starts higher priorities first. Raises as
        `pause`.
        """
        ...

    async def annotate(self, experiment: UUID, annotation: Annotation, *, request_id: UUID) -> Done:
        """Adds a note, a star or labels to an experiment in any state, or to a rollout. Raises NotFoundError."""
        ...

    async def tag(self, experiment: UUID, group: UUID, *, priority: float, reason: str, request_id: UUID) -> Done:
        """Changes the priority of a group's experiences waiting for a batch. Raises ConflictError if none waits."""
        ...

    async def give_up(self, experiment: UUID, experience: UUID, *, reason: str, request_id: UUID) -> Done:
        """Retires an experience with a permanently lost payload, and abandons a never-executed batch holding the
        experience.

        Raises ConflictError if the experience was trained, or is retired.
        """
        ...

    async def add_tasks(self, experiment: UUID, tasks: Sequence[str], *, request_id: UUID) -> Done:
        """Adds tasks, each a JSON object, to the task queue of a running experiment.

        Raises ConflictError if the experiment has no queue or its queue was ended, DataError for a text that is no
        task.
        """
        ...

    async def end_tasks(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Ends the task queue of a running experiment: no further task can be added. Raises ConflictError as
        `add_tasks`.
        """
        ...

    async def why(self, experiment: UUID) -> Why:
        """Returns the wait of each role, the most serious first; changes nothing. Raises NotFoundError."""
        ...

    async def waits(self, experiment: UUID) -> list[Wait]:
        """Returns the waits of each role as of the records read by this daemon, without waiting for the log."""
        ...

    def under_way(self, experiment: UUID) -> WorkUnderWay | None:
        """Returns the unfinished rollouts or held-out rows of an experiment running here, with tokens sampled
        meanwhile; None without any.
        """
        ...

    def pause_state(self, experiment: UUID) -> PauseState | None:
        """Returns how far the pause of an experiment has come: draining, quiet or released; None unless paused."""
        ...

    def named(self, name_or_id: str) -> UUID:
        """Returns the id of the experiment with this name or id, as of the records read by this daemon. Raises
        NotFoundError, UsageError.

        Answers even while the tables do not.
        """
        ...

    def looked(self, name_or_id: str) -> None:
        """Records the asker as a reader of an experiment, so that `limits.unseen_days` starts again. No effect without
        that limit.
        """
        ...

    def spent(self, experiment: UUID) -> Spent | None:
        """Returns the amounts spent of an experiment's budgets; None without budgets, or for an unknown experiment."""
        ...

    def opening(self, experiment: UUID) -> list[Wait]:
        """Returns a wait for each started worker still preparing (for example loading its model), with activity and
        start time.
        """
        ...

    def memory(self, experiment: UUID) -> list[WorkerMemory]:
        """Returns the forecast of the workers' memory, computed when the experiment was accepted."""
        ...

    async def trackers(self, experiment: UUID) -> dict[str, Cursor]:
        """Returns the cursors of the experiment's trackers by kind, as last written by the tracker processes."""
        ...

    def spine(self, experiment: UUID) -> Spine | None:
        """Returns the folded life of an experiment running on this daemon; None if no run of this daemon drives the
        experiment.
        """
        ...

    async def text_origin(self, experiment: UUID) -> TextOrigin | None:
        """Returns the specification and tokenizers of an experiment; None for an unknown experiment."""
        ...

    def host(self) -> Host:
        """Returns the machine or cluster of the workers started here, with devices and installed engines. Blocks."""
        ...

    def used_bytes(self, experiment: UUID) -> dict[tuple[str, str], int]:
        """Returns the resident memory in bytes of the largest live worker by (role, stage), from the last
        heartbeats.
        """
        ...

    def stopped(self, experiment: UUID) -> LogLossError | None:
        """Returns the error of an experiment stopped by lost log records, with the operator's choices; None if not
        stopped.
        """
        ...

    async def archive(self, experiment: UUID, *, to: str, request_id: UUID) -> Done:
        """Moves the files of an ended experiment into a file (`to`, or a new file below the data folder).

        Raises NotFoundError, ConflictError (not ended, not here, or its files are needed by a fork), DiskFullError.
        """
        ...

    async def restore(self, experiment: UUID, *, source: str, request_id: UUID) -> Done:
        """Puts archived files back, from `source` if the archive has moved.

        Raises NotFoundError, ConflictError, ArchiveError, LogCorruptError unless the archive is byte for byte the
        written one.
        """
        ...

    async def remove(self, experiment: UUID, *, reason: str, archive: bool, request_id: UUID) -> Done:
        """Deletes an ended experiment's files (moves the files into an archive first if `archive`) and frees the name.
        Raises as `archive`.
        """
        ...

    @property
    def allowances(self) -> Allowances:
        """Allow-lists of the daemon, applied to every asker except the owner."""
        ...

    @property
    def keeping(self) -> Keeping:
        """Rules of the daemon for dropping payloads and archiving the files of ended experiments."""
        ...

    @property
    def log_excess_bytes(self) -> int:
        """Bytes of the log above the size limit of the keeping rules after every droppable payload was dropped; 0
        within the limit.
        """
        ...

    async def queued_by(self) -> dict[str, int]:
        """Returns the number of queued experiments by submitter's name."""
        ...

    async def refusals(self) -> list[Position]:
        """Returns the log positions of the newest refused requests (requests sent as records by other programs), oldest
        first.
        """
        ...

    async def dead_letters(self, tasks: Sequence[FailedTask]) -> list[Dead]:
        """Returns every dead letter, newest first; `tasks` are all tasks closed with failed rollouts. Changes
        nothing.
        """
        ...

    async def retry_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        """Leases the failed task of a dead letter once more. Raises NotFoundError, ConflictError if a retry could have
        no effect.
        """
        ...

    async def drop_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        """Marks a dead letter as dropped, with a reason. Raises ConflictError if the letter was retried."""
        ...
