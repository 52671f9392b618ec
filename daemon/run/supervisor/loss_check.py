"""`LossCheck`: compares heads remembered outside the log with the log before the first append, and stops experiments
hit by a loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from rftd.daemon.run.registry import Entry, Registry, every_entry, find_entry
from rftd.daemon.run.supervisor.folder_claims import EVERY, POLL_INTERVAL_S, FolderClaims
from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.folder_log import of_another_log
from rftd.daemon.serve.log_identity import last_identity
from rftd.ops.clock import Clock
from rftd.ops.errors import LogLossError, OtherLogError, UnreachableError, UsageError
from rftd.ops.logs import Logger
from rftd.storage.database.engine import open_database
from rftd.storage.files.survivors import (
    Job,
    LossesFile,
    checkpoints_folded,
    of_checkpoints,
    of_fold,
    of_jobs,
    of_log_folder,
    of_registry,
    of_tables,
)
from rftd.streams.events.experiment import HeadRef, LossAccepted
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Kept
from rftd.streams.log.codec import Writer
from rftd.streams.log.log import EventLog
from rftd.streams.log.lost_records import (
    Life,
    Loss,
    Witness,
    affected,
    bereaves,
    comparable,
    deleted_from,
    heads_of,
    loss_error,
    losses_among,
    losses_of,
    newest_of,
    remembered_within,
    still_lost,
)
from rftd.streams.sqlite.socket.append_gate import AppendGate
from rftd.workers.hosts.executor import Executor

GREETING_S: Final = 3.0
"""Maximum seconds of waiting, before a run begins, for live workers to report the heads remembered only in their
memory.
"""
# At some 100 bytes each, far below `limits.RECORD_SIZE_BYTES`: a larger acceptance could not be recorded, and its
# experiment could never continue.
HEADS_IN_AN_EVENT: Final = 2_000
"""Maximum number of accepted heads in one event."""
HEADS_IN_A_TURN: Final = 128
"""Number of older remembered heads compared with the log in one turn of a run's loop."""


class LossCheck:
    """Detects records lost by the log, and stops the experiments concerned.

    Checkpoints, fences, snapshots, tables and workers remember heads (offset and chain value of a partition's last
    record); a remembered head missing in the log is a loss. Detected losses are written to a file before anything is
    appended, because appends hide the size of a loss.
    """

    def __init__(
        self,
        log: EventLog,
        file: LossesFile | None,
        *,
        logger: Logger | None,
        door: AppendGate | None = None,
        claims: FolderClaims | None = None,
    ) -> None:
        """Without a `file`, losses are remembered only by this object; without a `logger`, nothing is logged.

        `door` admits the clients of the log's socket server to appending; None without such a server. `claims` knows
        the folders owned by other logs, whose memories prove no loss of this log.
        """
        self._log = log
        self._file = file
        self._logger = logger
        self._door = door
        self.claims: Final = claims or FolderClaims(None, logger=logger)
        """Owners of experiments' folders, by which folders of other logs are refused."""
        self._written: dict[HeadRef, Loss] = {}
        """Losses in the file of losses, by the remembered head."""
        self._losses: dict[HeadRef, Loss] = {}
        """Detected losses, by the remembered head."""
        self._experiments: Mapping[UUID, Entry] = {}
        """Experiments of the registry, once `hear` was called."""
        self._stop: Callable[[UUID], None] = lambda _: None
        """Function stopping the run of an experiment; set by `hear`."""
        self._present: tuple[UUID, ...] | None = None
        """Experiments not ended when this daemon started; losses detected later may concern them."""
        self._one_listener = asyncio.Lock()
        """Lock held while heads are compared and losses written."""
        self._compared_heads: set[HeadRef] = set()
        """Heads found in the log by this daemon and older than other compared heads: not compared again."""
        self._first_check_over = False
        """True once the heads remembered at the daemon's start were compared."""
        self._compared: set[UUID] = set()
        """Experiments whose own remembered heads were compared with the log."""

    @property
    def losses(self) -> list[Loss]:
        """Detected losses still missing in the log, accepted by an operator or not."""
        return list(self._losses.values())

    async def note(
        self, witnesses: Iterable[Witness], deleted: Iterable[Loss] = (), *, of: UUID | None = None
    ) -> list[Loss]:
        """Compares the heads remembered by `witnesses` with the log, and returns the missing ones, with the losses
        `deleted`.

        `deleted` are losses already known from gaps in the log; `of` is the experiment owning the remembered heads,
        None for several. Before returning, writes the losses to the file and stops the experiments concerned: those not
        ended when this daemon started, and `of`.
        """
        return await self._note(comparable(witnesses), deleted, of=of)

    async def _note(
        self, remembered: Mapping[HeadRef, str], deleted: Iterable[Loss] = (), *, of: UUID | None = None
    ) -> list[Loss]:
        # Several callers may speak at once (a client at the door, a run, the projector), and the file is read, merged
        # and written whole: interleaved, the later write would drop the losses of the earlier one.
        """Compares remembered heads with the log, and records the missing ones, and the losses `deleted`, in the file;
        parameters as of `note`.
        """
        async with self._one_listener:
            if self._file is not None and not self._written:
                await self._recall(self._file)

            losses = [*await losses_among(self._log, remembered), *deleted]
            for loss in losses:
                if loss.head.ref not in self._losses:
                    if self._logger is not None:
                        self._logger.error("log.loss", position=loss.where, reason=loss.what)
                    self._losses[loss.head.ref] = self._written.get(loss.head.ref, loss)
            # On disk first: the first append after a loss makes the log as long as before, and from then on nothing
            # shows the missing records.
            await self._write_down({loss.head.ref for loss in losses}, of)
        if losses:
            for experiment in self.stopped():
                self._stop(experiment)
            self._admit_appenders()
        return losses

    async def hear(
        self, experiments: Mapping[UUID, Entry], stop: Callable[[UUID], None], *, copies: Path | None = None
    ) -> None:
        """Compares the heads remembered in all experiments' folders (claimed here), by the newest fences and by
        reconnected clients with the log; then admits appends.

        `experiments` is read again at each later check; `stop` is called with the id of each experiment stopped by a
        loss. Calls after the first do nothing. With `copies`, folders are read as copied below that root (of a backup).
        """
        if self._first_check_over:
            return
        self._experiments = experiments
        self._stop = stop
        # Recorded once, at the first check: an experiment submitted later never rested on the missing records.
        if self._present is None:
            self._present = tuple(
                sorted(experiment.id for experiment in experiments.values() if not experiment.spine.ended)
            )
        root = Path("/") if copies is None else copies
        if copies is None:
            await self.claims.claim_all(experiments.values())
        jobs = [
            Job(experiment.name, root / experiment.job_dir.lstrip("/"))
            for experiment in self.claims.among(experiments).values()
            if experiment.spine.kept is Kept.HERE
        ]
        fences = [
            Witness(f"the newest fence of {experiment.name}", heads_of(experiment.fence))
            for experiment in experiments.values()
        ]
        reconnected = self._door.witnesses if self._door is not None else []
        witnesses = [*await asyncio.to_thread(of_jobs, jobs), *fences, *reconnected]
        await self.note(witnesses, await deleted_from(self._log))
        if self._door is not None:
            self._door.listener = self.meet
        self._admit_appenders()
        self._first_check_over = True

    async def compare_run_heads(self, entry: Entry, executor: Executor, state: RunState) -> dict[HeadRef, str]:
        """Compares the newest heads remembered by one run (its events, folder and live workers), and returns the older
        heads.

        The older heads, one per partition and kept checkpoint, are left to `compare_older_heads`: appends cannot hide
        them. Raises LogLossError, OtherLogError: the run must not append.
        """
        await self._require_claim(entry, self.claims.begin)
        if self._door is not None:
            alive = [started.pid for started in state.roster.live.values() if executor.lives(started)]
            await self._door.wait_for(alive, GREETING_S)
        jobs = [Job(entry.name, Path(entry.job_dir))]
        remembered = await asyncio.to_thread(lambda: comparable([*of_fold(state), *of_jobs(jobs)]))
        newest = newest_of(remembered)
        losses = await self._note(newest, await deleted_from(self._log), of=entry.id)
        self._compared.add(entry.id)
        older = {ref: by for ref, by in remembered.items() if ref not in newest and ref not in self._compared_heads}
        if losses:  # an operator deciding about the loss needs all of it
            await self._note(older, of=entry.id)
        self.check(entry)
        return older

    async def compare_idle_heads(self, entry: Entry) -> None:
        """Compares the heads in the checkpoints of an experiment without a run, before a command on it is appended.

        A later comparison would be too late: the command's record makes the partition as long as before the loss, and a
        cancelled experiment gets no run. Calls after the first only check again. Raises LogLossError.
        """
        if entry.id not in self._compared:
            state = await checkpoints_folded(self._log, entry.id, entry.spine)
            remembered = newest_of(comparable(await asyncio.to_thread(of_fold, state)))
            await self._note(remembered, await deleted_from(self._log), of=entry.id)
            self._compared.add(entry.id)
        self.check(entry)

    async def look(self, entry: Entry) -> None:
        """Raises OtherLogError if the folder of a running experiment now belongs to another log: the run must stop."""
        await self._require_claim(entry, self.claims.claim)

    async def _require_claim(self, entry: Entry, claim: Callable[[Entry], OtherLogError | None]) -> None:
        """Raises the error returned by `claim` if another log owns the experiment's folder."""
        error = await asyncio.to_thread(claim, entry)
        if error is not None:
            self._admit_appenders()
            raise error

    async def compare_older_heads(self, entry: Entry, older: dict[HeadRef, str]) -> None:
        """Compares the next `HEADS_IN_A_TURN` of a run's older heads, and removes them from `older`. Raises
        LogLossError: the run must stop.
        """
        batch = {ref: older.pop(ref) for ref in list(islice(older, HEADS_IN_A_TURN))}
        if not await self._note(batch, of=entry.id):
            self._compared_heads.update(batch)
        self.check(entry)

    def stopped(self) -> dict[UUID, list[Loss]]:
        """Returns the experiments stopped by losses, each with the losses possibly affecting it; empty
        without losses.
        """
        losses_by_experiment: dict[UUID, list[Loss]] = {}
        lives = _lives_of(self._experiments.values()) if self._losses else []
        for loss in self._losses.values():
            for id in affected(loss, lives):
                losses_by_experiment.setdefault(id, []).append(loss)
        return losses_by_experiment

    def check(self, entry: Entry) -> None:
        """Raises LogLossError, with the operator's choices, if a loss stops the experiment; OtherLogError if another
        log owns its folder.
        """
        if (elsewhere := self.claims.refused.get(entry.id)) is not None:
            raise elsewhere
        lost = [loss for loss in self._losses.values() if affected(loss, _lives_of([entry]))]
        if lost:
            raise loss_error(lost, entry.name)

    def lost_files_error(self, entry: Entry) -> LogLossError | None:
        """Returns an error if events naming the experiment's files were lost and the loss was not accepted; None
        otherwise.

        Ended experiments are included: without the events, an archive would lack files, and a removal would leave some
        behind.
        """
        if (elsewhere := self.claims.refused.get(entry.id)) is not None:
            return elsewhere
        start = entry.spine.start
        accepted = entry.losses
        lost = [loss for loss in self._losses.values() if bereaves(loss, entry.id, start=start, accepted=accepted)]
        return loss_error(lost, entry.name) if lost else None

    def refusal(self, experiment: UUID) -> LogLossError | None:
        """Returns the error of `check` instead of raising it; None if the experiment may continue or is unknown."""
        try:
            if (entry := self._experiments.get(experiment)) is not None:
                self.check(entry)
        except LogLossError as error:
            return error
        return None

    def free(self, experiments: Iterable[Entry]) -> list[Entry]:
        """Returns the experiments that may continue; clients of the other experiments are no longer admitted to
        appending.
        """
        self._admit_appenders()
        stopped = {*self.stopped(), *self.claims.refused}
        return [experiment for experiment in experiments if experiment.id not in stopped]

    async def meet(self, witness: Witness | None, of: UUID | None = None) -> None:
        """Compares heads reported after the first check, by a reconnecting client or by the run of experiment `of`;
        None does nothing.
        """
        if witness is not None:
            await self.note([witness], of=of)

    async def accept(self, names: Iterable[str], writer: Writer, *, by: str) -> None:
        """Records an operator's acceptance (`by`) of all lost records for these experiments. Raises NotFoundError,
        UsageError.
        """
        for name in names:
            entry = await find_entry(self._log, name)
            folders = await asyncio.to_thread(of_checkpoints, entry.spec, entry.id)
            more = await losses_of(self._log, [*folders, *await remembered_within(self._log)])
            lost = {loss.head.ref: loss.head for loss in (*self.losses, *more) if loss.head.ref not in entry.losses}

            heads = [lost[ref] for ref in sorted(lost, key=lambda ref: (ref.stream, ref.partition, ref.next_offset))]
            for start in range(0, len(heads), HEADS_IN_AN_EVENT):
                event = LossAccepted(lost=tuple(heads[start : start + HEADS_IN_AN_EVENT]), by=by)
                await self._log.append([writer.draft(event, experiment=entry.id)])
            if self._logger is not None:
                self._logger.warning("loss.accepted", experiment=entry.name, heads=len(heads), by=by)

    async def take_over(self, names: Collection[str]) -> None:
        """Makes this log the owner of the experiments' folders; the name `EVERY` means all. Raises NotFoundError,
        UsageError.
        """
        every = await every_entry(self._log) if EVERY in names else []
        for entry in [*every, *[await find_entry(self._log, name) for name in names if name != EVERY]]:
            try:
                await asyncio.to_thread(self.claims.take_over, entry)
            except OSError as error:
                raise UsageError(
                    f"the folder of {entry.name} cannot be taken over: {error.strerror}",
                    where=entry.job_dir,
                    fix="give the daemon's user the right to write there, or put the folder back, or omit --take-over",
                ) from error

    async def _recall(self, file: LossesFile) -> None:
        """Reads the file of losses, and keeps those still missing: after a restore of the right log they stop
        nothing.
        """
        self._written = {loss.head.ref: loss for loss in await asyncio.to_thread(file.read)}
        still = await still_lost(self._log, self._written.values())
        self._losses |= {ref: loss for ref, loss in self._written.items() if ref in still}

    async def _write_down(self, noticed: Collection[HeadRef], of: UUID | None) -> None:
        """Adds new losses to the file, with the experiments concerned by each: for those `noticed`, now also `of`."""
        for ref, loss in self._losses.items():
            concerned = loss.experiments if loss.experiments is not None else self._present
            if concerned is not None and of is not None and ref in noticed and self._concerns(loss, of):
                concerned = tuple(sorted({*concerned, of}))
            self._losses[ref] = msgspec.structs.replace(loss, experiments=concerned)
        losses = {**self._written, **self._losses}
        if self._file is not None and self._logger is not None and losses != self._written:
            await asyncio.to_thread(self._file.write, list(losses.values()))
            self._written = losses

    def _concerns(self, loss: Loss, experiment: UUID) -> bool:
        """True if the loss may affect the experiment; False for records deleted before the experiment began."""
        entry = self._experiments.get(experiment)
        if entry is None or loss.head.chain:
            return True
        return bereaves(loss, experiment, start=entry.spine.start, accepted=entry.losses)

    def _admit_appenders(self) -> None:
        """Admits clients to appending, except those of stopped or refused experiments."""
        if self._door is not None:
            self._door.open({*self.stopped(), *self.claims.refused})


class Survivors:
    """The check of the heads remembered by one run: the newest before its first append, the older ones during its
    turns.
    """

    def __init__(self, loss_check: LossCheck, entry: Entry, executor: Executor, clock: Clock) -> None:
        """Compares the heads remembered for `entry` and by the workers of `executor` with the log of `loss_check`."""
        self._loss_check = loss_check
        self._clock = clock
        self._looked_s = clock.monotonic_s()
        """Monotonic time of the last check of the folder's owner."""
        self._entry = entry
        self._executor = executor
        self._older: dict[HeadRef, str] = {}
        """Remembered heads not compared yet, with the place remembering each."""

    async def hear(self, state: RunState) -> None:
        """Returns once the run may append, because the log has its newest remembered heads. Raises LogLossError."""
        self._older = await self._loss_check.compare_run_heads(self._entry, self._executor, state)

    async def compare_older_heads(self) -> None:
        """Compares some of the run's older heads, and checks that its folder still belongs to this log. Raises
        LogLossError.
        """
        if self._clock.monotonic_s() - self._looked_s >= POLL_INTERVAL_S:
            self._looked_s = self._clock.monotonic_s()
            with suppress(OSError):  # a temporarily failing disk is the workers' trouble
                await self._loss_check.look(self._entry)
        if self._older:
            await self._loss_check.compare_older_heads(self._entry, self._older)


def _lives_of(experiments: Iterable[Entry]) -> list[Life]:
    """Returns id, end and accepted losses of each experiment."""
    return [Life(experiment.id, experiment.spine.ended, experiment.losses) for experiment in experiments]


async def find_losses(
    log: EventLog,
    folder: DataFolder,
    state_url: str | None,
    *,
    embedded: bool,
    unheard: Callable[[UnreachableError], None],
    copies: Path | None = None,
) -> list[Loss]:
    """Returns the losses of a log by comparing all remembered heads, with or without a daemon; writes nothing.

    `state_url` is the URL of a Postgres with the tables, None for tables in the folder; `unheard` gets the error of a
    Postgres that does not answer. Only the `embedded` log has its own file of remembered heads. `copies` is the root of
    the experiments' files in a backup.
    """
    own_identity = await asyncio.to_thread(last_identity, folder) if embedded else None
    claims = FolderClaims(own_identity, logger=None)
    loss_check = LossCheck(log, LossesFile(folder.losses), logger=None, claims=claims)
    log_witnesses = await asyncio.to_thread(of_log_folder, folder.log) if embedded else []
    ours = not await asyncio.to_thread(of_another_log, folder, embedded=embedded)
    witnesses = [*log_witnesses, *(await asyncio.to_thread(of_registry, folder.known) if ours else ())]
    if state_url is not None or (ours and folder.state.exists()):
        engine = open_database(state_url or folder.state_url)
        try:
            witnesses += await of_tables(engine)
        except UnreachableError as error:
            unheard(error)
        finally:
            await engine.dispose()
    await loss_check.note(witnesses)
    registry = Registry(log)
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    # No run exists in this process, so `stop` has no effect.
    await loss_check.hear(registry.entries, lambda _: None, copies=copies)
    return loss_check.losses
