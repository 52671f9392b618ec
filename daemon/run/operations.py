"""`Operations`: the commands of a daemon for the HTTP API, and through it the CLI. Reads go to `storage.queries`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgspec

from rftd.daemon.run.dlq.letter import Dead, DeadLetterReceipt
from rftd.daemon.run.why.wait import Wait, Why
from rftd.daemon.serve.keeping import Keeping
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.asker import Asker
from rftd.ops.errors import LogLossError
from rftd.streams.events.sweep import Halving, SweepPoint
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.spine import Spine, Status
from rftd.streams.folds.sweeps import RecordedSweep
from rftd.streams.log.envelope import Position
from rftd.streams.spec.engine_needs import WorkerMemory
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.control.budgets import Spent
from rftd.workers.tracking.cursor import Cursor


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that is in the log."""

    experiment: UUID
    name: str
    event: UUID
    """Id of experiment.submitted."""
    position: Position
    """A read `after` this position sees it."""
    warnings: tuple[str, ...]


class Forked(Accepted, frozen=True, kw_only=True):
    """A fork that is in the log."""

    parent: UUID
    """The experiment whose history it shares."""
    at_step: int


class StandingRun(NamedTuple):
    """A run of a sweep that was submitted."""

    point: int
    """Its place in the sweep, from 0."""
    experiment: UUID
    status: Status


class StandingSweep(NamedTuple):
    """A sweep, and what became of it."""

    sweep: RecordedSweep
    runs: tuple[StandingRun, ...]
    over: bool
    """True if each run has ended, could not begin, or will not."""


class Done(NamedTuple):
    """A command that took effect."""

    event: UUID
    """Id of the event that it became."""
    position: Position
    """A read `after` this position sees it."""


class WantedSweep(msgspec.Struct, frozen=True):
    """A sweep as it was asked for; its runs have no names yet. See `Operations.sweep`."""

    config: dict[str, Any]
    points: tuple[SweepPoint, ...]
    name: str | None
    at_once: int | None
    halving: Halving | None = None


class SweepTaken(NamedTuple):
    """A sweep that is in the log."""

    standing: StandingSweep
    done: Done


class Operations(Protocol):
    """Commands. Each is in effect when it returns, as the log says.

    `request_id` is the caller's key: repeated with it a command changes nothing and gets the same answer, on any daemon
    of the log. All raise ReusedKeyError if the key was used for something else, with what and when, and NotAllowedError
    for what the asker may not do or name.
    """

    def for_asker(self, asker: Asker) -> Operations:
        """The commands as this asker gives them."""
        ...

    async def submit(self, config: dict[str, Any], *, request_id: UUID) -> Accepted:
        """Takes in an experiment: validates it, looks at its model and datasets, appends it.

        `config` is the client's normalised configuration (`rftd.daemon.config`). Raises ConfigError, DataError (nothing
        was appended), ConflictError (its folder is in use).
        """
        ...

    async def check(self, config: dict[str, Any]) -> ExperimentSpec:
        """The specification that `submit` would append now, after the same checks. Nothing is appended.

        Raises as `submit`.
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
        """Takes in an experiment that goes on from weight version `at_step` of another, with changes.

        `overrides` are `key=value`, as for `submit -s`. Without a name it is PARENT-fork-STEP. Raises NotFoundError,
        ConfigError, DataError (nothing was appended), ConflictError (the step was not executed, its folder is in use).
        """
        ...

    async def sweep(self, wanted: WantedSweep, *, request_id: UUID) -> SweepTaken:
        """Takes in a sweep: each of its runs is checked as `submit` would, and none begins if one is refused.

        Raises as `submit`, and ConflictError if a sweep has the name.
        """
        ...

    async def sweeps(self) -> list[StandingSweep]:
        """Every sweep, in the order of the log."""
        ...

    async def sweep_named(self, wanted: str) -> StandingSweep:
        """The sweep that a person named. Raises NotFoundError, UsageError."""
        ...

    async def cancel_sweep(self, sweep: UUID, *, reason: str, request_id: UUID) -> Done:
        """Ends a sweep and its runs. Raises NotFoundError, ConflictError if it is over."""
        ...

    async def pause(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Pauses a running experiment. Raises NotFoundError, ConflictError (with its state)."""
        ...

    async def resume(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Resumes a paused one. Raises as `pause`."""
        ...

    async def cancel(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Ends one that has not ended. Raises as `pause`."""
        ...

    async def prioritize(self, experiment: UUID, *, priority: int, reason: str, request_id: UUID) -> Done:
        """Changes the priority of one that has not ended: in the queue higher ones go first. Raises as `pause`."""
        ...

    async def tag(self, experiment: UUID, group: UUID, *, priority: float, reason: str, request_id: UUID) -> Done:
        """Gives the experiences of a group another priority. Raises ConflictError if none of them waits."""
        ...

    async def give_up(self, experiment: UUID, experience: UUID, *, reason: str, request_id: UUID) -> Done:
        """Retires an experience whose payload is gone for good; a batch that holds it and was never executed is undone.

        Raises ConflictError if it was trained, or is retired.
        """
        ...

    async def add_tasks(self, experiment: UUID, tasks: Sequence[str], *, request_id: UUID) -> Done:
        """Adds tasks, each a JSON object, to the queue of an experiment under way.

        Raises ConflictError if its tasks are no queue or their end was told, DataError for a text that is no task.
        """
        ...

    async def end_tasks(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Tells the end of the queue of an experiment under way. Raises ConflictError as `add_tasks`."""
        ...

    async def why(self, experiment: UUID) -> Why:
        """The waits of each role, worst first; nothing is changed. Raises NotFoundError."""
        ...

    def named(self, wanted: str) -> UUID:
        """The experiment that a person named, as far as this daemon has read the log. Raises NotFoundError, UsageError.

        It answers while the tables do not.
        """
        ...

    def looked(self, wanted: str) -> None:
        """Notes that the asker looks at the experiment of this name, where that matters: see `limits.unseen_days`."""
        ...

    def spent(self, experiment: UUID) -> Spent | None:
        """What it has spent of its budgets; None if it has none, or is not known here."""
        ...

    def opening(self, experiment: UUID) -> list[Wait]:
        """The workers that live and are not ready to be given work yet, each with what it does since when."""
        ...

    def memory(self, experiment: UUID) -> list[WorkerMemory]:
        """The memory that its workers were expected to take when it was accepted."""
        ...

    async def trackers(self, experiment: UUID) -> dict[str, Cursor]:
        """The cursors of its trackers by kind, as their processes have written them."""
        ...

    def spine(self, experiment: UUID) -> Spine | None:
        """The spine of an experiment that is under way here, as its run has read it; else None."""
        ...

    def used_bytes(self, experiment: UUID) -> dict[tuple[str, str], int]:
        """The resident memory of its largest living worker by role and stage, as last heartbeats tell it."""
        ...

    def stopped(self, experiment: UUID) -> LogLossError | None:
        """The loss for which the experiment must not go on, with the choices that remain; None if there is none."""
        ...

    async def archive(self, experiment: UUID, *, to: str, request_id: UUID) -> Done:
        """Puts the files of one that has ended into a file (`to`, or a new one below the data folder) and removes them.

        Raises NotFoundError, ConflictError: it has not ended, is not here, or a fork needs its files; DiskFullError.
        """
        ...

    async def restore(self, experiment: UUID, *, source: str, request_id: UUID) -> Done:
        """Puts archived files back, from `source` if the archive lies elsewhere now.

        Raises NotFoundError, ConflictError, ArchiveError, LogCorruptError if it is not the very file that was written.
        """
        ...

    async def remove(self, experiment: UUID, *, reason: str, archive: bool, request_id: UUID) -> Done:
        """Removes the files of one that has ended, for good unless `archive`; its name is free. Raises as `archive`."""
        ...

    @property
    def allowances(self) -> Allowances:
        """The allow-lists that everybody but the owner is held to."""
        ...

    @property
    def keeping(self) -> Keeping:
        """The rules by which this daemon lets payloads and files go."""
        ...

    @property
    def log_excess_bytes(self) -> int:
        """Bytes by which the log is larger than the rules want it, with nothing left that they may drop."""
        ...

    async def queued_by(self) -> dict[str, int]:
        """The number of experiments in the queue, by the name of who submitted them."""
        ...

    async def refusals(self) -> list[Position]:
        """The newest refusals of requests by records, oldest first."""
        ...

    async def dead_letters(self, tasks: Sequence[FailedTask]) -> list[Dead]:
        """Every dead letter, newest first; `tasks` are all that closed with failed rollouts. Changes nothing."""
        ...

    async def retry_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        """Lets it take effect after all. Raises ConflictError where that is not sound any more, NotFoundError."""
        ...

    async def drop_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        """Takes it from the list of what is open. Raises ConflictError if it was retried."""
        ...
