"""`Hearing`: every survivor of the log is heard before the first append; whom a loss concerns is stopped (rule 10)."""

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
from rftd.daemon.run.supervisor.folder_claims import EVERY, LOOK_S, FolderClaims
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
"""The wait, before a run is taken up, for processes that live and may remember what nobody else does."""
# At some 100 bytes each, far below `limits.RECORD_SIZE_BYTES`: an acceptance that is too large could not be recorded,
# and its experiment could never go on.
HEADS_IN_AN_EVENT: Final = 2_000
HEADS_IN_A_TURN: Final = 128
"""The number of older remembered heads that a run compares with the log in one turn."""


class Hearing:
    """Weighs what is remembered against the log, and knows which experiments must not go on.

    What is noticed is written to a file before anything is appended: what is appended hides how much was lost.
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
        """Without a `file` what is noticed is forgotten with this object, and without a `logger` nothing is written.

        The `door` is that of the log's socket, if it has one. `claims` says which folders are another log's: what those
        remember is no loss of this one.
        """
        self._log = log
        self._file = file
        self._logger = logger
        self._door = door
        self.claims: Final = claims or FolderClaims(None, logger=logger)
        self._written: dict[HeadRef, Loss] = {}
        self._losses: dict[HeadRef, Loss] = {}
        self._entries: Mapping[UUID, Entry] = {}
        self._stop: Callable[[UUID], None] = lambda _: None
        self._present: tuple[UUID, ...] | None = None
        """The experiments that had not ended when this daemon began: a loss that is noticed later concerns them."""
        self._one_listener = asyncio.Lock()
        self._held: set[HeadRef] = set()
        """Heads of runs that the log held when this daemon compared them, all below newer ones: they are not again."""
        self._heard = False
        self._compared: set[UUID] = set()
        """Experiments whose own memories were compared."""

    @property
    def losses(self) -> list[Loss]:
        """All losses that were ever noticed and still hold, accepted or not."""
        return list(self._losses.values())

    async def note(
        self, witnesses: Iterable[Witness], deleted: Iterable[Loss] = (), *, of: UUID | None = None
    ) -> list[Loss]:
        """The losses among what the witnesses remember, with those known to be deleted.

        It is written down, and whom it concerns is stopped, before this returns: those that had not ended when this
        daemon began, and the experiment `of` whose own parts these are.
        """
        return await self._note(comparable(witnesses), deleted, of=of)

    async def _note(
        self, remembered: Mapping[HeadRef, str], deleted: Iterable[Loss] = (), *, of: UUID | None = None
    ) -> list[Loss]:
        # Several may speak at once (a client at the door, a run, the projector), and the file is read, merged and
        # written whole: interleaved, the later write would drop the losses of the earlier one.
        async with self._one_listener:
            if self._file is not None and not self._written:
                await self._recall(self._file)

            losses = [*await losses_among(self._log, remembered), *deleted]
            for loss in losses:
                if loss.head.ref not in self._losses:
                    if self._logger is not None:
                        self._logger.error("log.loss", position=loss.where, reason=loss.what)
                    self._losses[loss.head.ref] = self._written.get(loss.head.ref, loss)
            # On disk first: the first append after a loss makes the log as long as it was, and from then on nobody
            # can tell that anything is missing.
            await self._write_down({loss.head.ref for loss in losses}, of)
        if losses:
            for experiment in self.stopped():
                self._stop(experiment)
            self._let_in()
        return losses

    async def hear(
        self, entries: Mapping[UUID, Entry], stop: Callable[[UUID], None], *, copies: Path | None = None
    ) -> None:
        """Hears the folders of all experiments, their newest fences and who came back; then others may append.

        `entries` are looked at again whenever somebody is heard; `stop` ends a run before its next append. Once is
        enough. With `copies` the folders are looked for at their own paths below it.
        """
        if self._heard:
            return
        self._entries = entries
        self._stop = stop
        # Taken once, at the first hearing: an experiment submitted later never rested on what is missing.
        if self._present is None:
            self._present = tuple(sorted(entry.id for entry in entries.values() if not entry.spine.ended))
        root = Path("/") if copies is None else copies
        if copies is None:
            await self.claims.claim_all(entries.values())
        jobs = [
            Job(entry.name, root / entry.job_dir.lstrip("/"))
            for entry in self.claims.among(entries).values()
            if entry.spine.kept is Kept.HERE
        ]
        fences = [Witness(f"the newest fence of {entry.name}", heads_of(entry.fence)) for entry in entries.values()]
        reconnected = self._door.witnesses if self._door is not None else []
        witnesses = [*await asyncio.to_thread(of_jobs, jobs), *fences, *reconnected]
        await self.note(witnesses, await deleted_from(self._log))
        if self._door is not None:
            self._door.listener = self.meet
        self._let_in()
        self._heard = True

    async def hear_run(self, entry: Entry, executor: Executor, state: RunState) -> dict[HeadRef, str]:
        """Hears what the events of one run remember, and its workers that live. Raises LogLossError: it must stop.

        What an append may hide is compared before this returns. Returns the older heads, for `hear_older`: a run
        remembers one of each partition for each checkpoint that it kept.
        """
        await self._claimed(entry, self.claims.begin)
        if self._door is not None:
            alive = [started.pid for started in state.roster.live.values() if executor.lives(started)]
            await self._door.wait_for(alive, GREETING_S)
        own = [Job(entry.name, Path(entry.job_dir))]
        remembered = await asyncio.to_thread(lambda: comparable([*of_fold(state), *of_jobs(own)]))
        newest = newest_of(remembered)
        losses = await self._note(newest, await deleted_from(self._log), of=entry.id)
        self._compared.add(entry.id)
        older = {ref: by for ref, by in remembered.items() if ref not in newest and ref not in self._held}
        if losses:  # whoever decides what becomes of it is told all that is lost
            await self._note(older, of=entry.id)
        self.check(entry)
        return older

    async def hear_idle(self, entry: Entry) -> None:
        """Hears what the checkpoints of an experiment without a run remember, before a command to it is recorded.

        Raises LogLossError. Its run would come too late: the record makes its partition as long as it was, and who
        cancels something ends it, so that nobody compares any more. Once is enough.
        """
        if entry.id not in self._compared:
            state = await checkpoints_folded(self._log, entry.id, entry.spine)
            remembered = newest_of(comparable(await asyncio.to_thread(of_fold, state)))
            await self._note(remembered, await deleted_from(self._log), of=entry.id)
            self._compared.add(entry.id)
        self.check(entry)

    async def look(self, entry: Entry) -> None:
        """Returns if the run's folder is this log's. Raises OtherLogError: it must stop."""
        await self._claimed(entry, self.claims.claim)

    async def _claimed(self, entry: Entry, claim: Callable[[Entry], OtherLogError | None]) -> None:
        error = await asyncio.to_thread(claim, entry)
        if error is not None:
            self._let_in()
            raise error

    async def hear_older(self, entry: Entry, older: dict[HeadRef, str]) -> None:
        """Compares some more of what a run remembers, and takes it out. Raises LogLossError: it must stop."""
        some = {ref: older.pop(ref) for ref in list(islice(older, HEADS_IN_A_TURN))}
        if not await self._note(some, of=entry.id):
            self._held.update(some)
        self.check(entry)

    def stopped(self) -> dict[UUID, list[Loss]]:
        """The experiments that must not go on, each with what of its truth may be lost."""
        losses_by_experiment: dict[UUID, list[Loss]] = {}
        lives = _lives(self._entries.values()) if self._losses else []
        for loss in self._losses.values():
            for id in affected(loss, lives):
                losses_by_experiment.setdefault(id, []).append(loss)
        return losses_by_experiment

    def check(self, entry: Entry) -> None:
        """Returns if the experiment may go on. Raises LogLossError, which says what a person can do."""
        if (elsewhere := self.claims.refused.get(entry.id)) is not None:
            raise elsewhere
        lost = [loss for loss in self._losses.values() if affected(loss, _lives([entry]))]
        if lost:
            raise loss_error(lost, entry.name)

    def bereft(self, entry: Entry) -> LogLossError | None:
        """The error for an experiment whose files events no longer account for, be it over or not.

        None if nothing of it was lost, or if the loss was accepted.
        """
        if (elsewhere := self.claims.refused.get(entry.id)) is not None:
            return elsewhere
        start = entry.spine.start
        accepted = entry.losses
        lost = [loss for loss in self._losses.values() if bereaves(loss, entry.id, start=start, accepted=accepted)]
        return loss_error(lost, entry.name) if lost else None

    def refusal(self, experiment: UUID) -> LogLossError | None:
        """The error with which an experiment must stop; None if it may go on."""
        try:
            if (entry := self._entries.get(experiment)) is not None:
                self.check(entry)
        except LogLossError as error:
            return error
        return None

    def free(self, entries: Iterable[Entry]) -> list[Entry]:
        """The entries that may go on; the door is closed to the others."""
        self._let_in()
        stopped = {*self.stopped(), *self.claims.refused}
        return [entry for entry in entries if entry.id not in stopped]

    async def meet(self, witness: Witness | None, of: UUID | None = None) -> None:
        """Hears somebody who came later, or the run of an experiment that met a loss."""
        if witness is not None:
            await self.note([witness], of=of)

    async def accept(self, names: Iterable[str], writer: Writer, *, by: str) -> None:
        """Lets experiments go on without all that is known to be lost, on record. Raises NotFoundError, UsageError."""
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
        """Gives the folders of these experiments, or of `EVERY` one, to this log. Raises NotFoundError, UsageError."""
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
        """Takes up what was written down; what is back, since the right log was restored, stops nobody any more."""
        self._written = {loss.head.ref: loss for loss in await asyncio.to_thread(file.read)}
        still = await still_lost(self._log, self._written.values())
        self._losses |= {ref: loss for ref, loss in self._written.items() if ref in still}

    async def _write_down(self, noticed: Collection[HeadRef], of: UUID | None) -> None:
        """Adds new losses to the file, with the experiments that each concerns: those `noticed` now also `of`."""
        for ref, loss in self._losses.items():
            concerned = loss.experiments if loss.experiments is not None else self._present
            if concerned is not None and of is not None and ref in noticed and self._concerns(loss, of):
                concerned = tuple(sorted({*concerned, of}))
            self._losses[ref] = msgspec.structs.replace(loss, experiments=concerned)
        written = {**self._written, **self._losses}
        if self._file is not None and self._logger is not None and written != self._written:
            await asyncio.to_thread(self._file.write, list(written.values()))
            self._written = written

    def _concerns(self, loss: Loss, experiment: UUID) -> bool:
        """False for what was deleted before the experiment was begun."""
        entry = self._entries.get(experiment)
        if entry is None or loss.head.chain:
            return True
        return bereaves(loss, experiment, start=entry.spine.start, accepted=entry.losses)

    def _let_in(self) -> None:
        if self._door is not None:
            self._door.open({*self.stopped(), *self.claims.refused})


class Survivors:
    """Whoever remembers the log of one run: the newest heads are compared before it appends, the older ones beside."""

    def __init__(self, hearing: Hearing, entry: Entry, executor: Executor, clock: Clock) -> None:
        self._hearing = hearing
        self._clock = clock
        self._looked_s = clock.monotonic_s()
        self._entry = entry
        self._executor = executor
        self._older: dict[HeadRef, str] = {}

    async def hear(self, state: RunState) -> None:
        """Returns if the run may append. Raises LogLossError."""
        self._older = await self._hearing.hear_run(self._entry, self._executor, state)

    async def hear_older(self) -> None:
        """Compares some of what is remembered below, and sees whose the folder is. Raises LogLossError."""
        if self._clock.monotonic_s() - self._looked_s >= LOOK_S:
            self._looked_s = self._clock.monotonic_s()
            with suppress(OSError):  # a disk that fails for a while is the workers' trouble
                await self._hearing.look(self._entry)
        if self._older:
            await self._hearing.hear_older(self._entry, self._older)


def _lives(entries: Iterable[Entry]) -> list[Life]:
    return [Life(entry.id, entry.spine.ended, entry.losses) for entry in entries]


async def losses_heard(
    log: EventLog,
    folder: DataFolder,
    state_url: str | None,
    *,
    embedded: bool,
    unheard: Callable[[UnreachableError], None],
    copies: Path | None = None,
) -> list[Loss]:
    """The losses that survivors testify to, asked beside a daemon or without one; nothing is written.

    `state_url` is that of a Postgres with the tables; `unheard` is told if it does not answer. Only the `embedded` log
    has a file of its own that remembers it. `copies` is the folder with the experiments' files of a backup.
    """
    own_identity = await asyncio.to_thread(last_identity, folder) if embedded else None
    claims = FolderClaims(own_identity, logger=None)
    hearing = Hearing(log, LossesFile(folder.losses), logger=None, claims=claims)
    own = await asyncio.to_thread(of_log_folder, folder.log) if embedded else []
    ours = not await asyncio.to_thread(of_another_log, folder, embedded=embedded)
    witnesses = [*own, *(await asyncio.to_thread(of_registry, folder.known) if ours else ())]
    if state_url is not None or (ours and folder.state.exists()):
        engine = open_database(state_url or folder.state_url)
        try:
            witnesses += await of_tables(engine)
        except UnreachableError as error:
            unheard(error)
        finally:
            await engine.dispose()
    await hearing.note(witnesses)
    registry = Registry(log)
    try:
        await registry.catch_up()
    finally:
        await registry.close()
    # Nothing runs in this process, so there is nobody to stop.
    await hearing.hear(registry.entries, lambda _: None, copies=copies)
    return hearing.losses
