"""`AskedCommands`: the commands of `Operations`, carried out for one asker with the supervisor's parts."""

from __future__ import annotations

import asyncio
import copy
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from rftd.daemon.run.consequence import Consequence
from rftd.daemon.run.dlq.letter import Dead, DeadLetterReceipt
from rftd.daemon.run.operations import Accepted, Annotation, Done, Forked
from rftd.daemon.run.registry import Entry, Registry, named_entry
from rftd.daemon.run.supervisor.asked_sweeps import AskedSweeps
from rftd.daemon.run.supervisor.foresight import new_experiment
from rftd.daemon.run.supervisor.inbox import Request, check_transition, requeued
from rftd.daemon.run.supervisor.intake import WantedFork
from rftd.daemon.run.supervisor.orders import Order, order_of
from rftd.daemon.run.supervisor.payloads import PayloadKeeper
from rftd.daemon.run.supervisor.queueing import adding, check_begun, ending
from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.run.supervisor.standing import StandingReads
from rftd.daemon.run.why.answer import answer, blocked_log, silent_log
from rftd.daemon.run.why.life import Line, broken_down, decided_elsewhere, entry_wait, lost_wait
from rftd.daemon.run.why.wait import Wait, Why, worst_first
from rftd.daemon.serve.keeping import Keeping
from rftd.daemon.serve.reconnecting import UNREACHABLE_ERRORS
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.asker import OWNER, AccessRole, Asker, NotAllowedError
from rftd.ops.errors import ConflictError, LogFullError, NotFoundError, UnreachableError, UsageError
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import ExperienceGivenUp, ExperiencePrioritized
from rftd.streams.events.registry import Event
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.key_use import KeyUse
from rftd.streams.folds.spine import Status
from rftd.streams.log.envelope import Position
from rftd.streams.spec.spec import ExperimentSpec

if TYPE_CHECKING:
    from rftd.daemon.run.dlq.dead_letter_service import DeadLetterService
    from rftd.daemon.run.supervisor.archiver import Archiver
    from rftd.daemon.run.supervisor.orders import Orders, Verdicts
    from rftd.daemon.run.supervisor.submissions import Submissions
    from rftd.ops.clock import Clock
    from rftd.streams.log.codec import Writer
    from rftd.streams.log.log import EventLog


REFRESH_S: Final = 3.0
"""Maximum seconds for which `why` waits for the log; then it answers from earlier records, and says so."""
_ARCHIVE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""Pattern of the archive names accepted from askers other than the owner: plain file names."""


class AskedCommands(AskedSweeps, StandingReads):
    """The `Operations` of a daemon, with the owner's rights, or with those of the asker after `for_asker`.

    In a view made by `rehearsing`, a command passes all checks, then raises `Rehearsed` with its consequence in place
    of acting.
    """

    _allowances: Allowances
    """Allow-lists applied to every asker except the owner."""
    _asker: Asker = OWNER
    """Person or program whose rights are checked, and whose name is recorded."""
    _clock: Clock
    """Clock of the times in answers."""
    _decides: bool
    """False for a daemon that only starts explorers, while another one decides about the experiments."""
    _dead_letters: DeadLetterService
    """Reader of the dead letters and of the verdicts on them."""
    _keeping: Keeping
    """Rules for payloads and for the files of ended experiments."""
    _archiver: Archiver
    """Archives, restores and removes the files of ended experiments."""
    _log: EventLog
    """The daemon's log."""
    _one_submission: asyncio.Lock
    """Held while an experiment's folder is taken or freed: for submitting, archiving, restoring and removing."""
    _orders: Orders
    """Executor of idempotent commands, once for each request key."""
    _payloads: PayloadKeeper
    """Drops payloads by the rules, and knows the bytes of the log above its limit."""
    _reading: asyncio.Lock
    """Held by the one reader of the registry's records."""
    _submissions: Submissions
    """Checks and appends of new experiments and forks."""
    _verdicts: Verdicts
    """Retries and drops of dead letters, each taking effect once."""
    _writer: Writer
    """Maker of records on the spine of an experiment without a run."""

    def for_asker(self, asker: Asker) -> Self:
        """Returns a view of these commands with the asker's rights, and name in events. See `Operations.for_asker`."""
        # All parts are shared: one supervisor has one queue for all askers.
        bound = copy.copy(self)
        bound._asker = asker
        return bound

    async def known(self) -> Registry:
        """Returns the registry of experiments after reading the log to its present end."""
        await self._refresh()
        return self._registry

    async def submit(self, config: dict[str, Any], *, request_id: UUID) -> Accepted:
        """Submits an experiment: validates the configuration, inspects model and datasets, and appends the event, or
        in a rehearsal raises `Rehearsed` instead. See `Operations.submit`.
        """
        if self._rehearses:
            self._end_rehearsal(self._new(await self.check(config)))
        accepted = await self._submissions.submit(config, request_id, asker=self._asker)
        self.runs.look()
        return accepted

    async def check(self, config: dict[str, Any]) -> ExperimentSpec:
        """Returns the specification that `submit` would append, and appends nothing. See `Operations.check`."""
        return await self._submissions.check(config, asker=self._asker)

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
        """Submits an experiment continuing from weight version `at_step` of another one, with changes, or in a
        rehearsal raises `Rehearsed` instead. See `Operations.fork`.
        """
        await self._refresh()
        await self._loss_check.compare_idle_heads(self._entry(experiment))
        request = WantedFork(experiment, at_step=at_step, overrides=tuple(overrides), name=name, labels=labels)
        if self._rehearses:
            spec = await self._submissions.check_fork(request, asker=self._asker)
            self._end_rehearsal(self._new(spec, f", {at_step} of them shared with {self._entry(experiment).name}"))
        forked = await self._submissions.fork(request, request_id, asker=self._asker)
        self.runs.look()
        return forked

    async def pause(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Pauses a running experiment. See `Operations.pause`."""
        event = life.ExperimentPaused(reason=reason, by=self._asker.name)
        return await self._command(order_of(request_id, "pause", experiment, reason), event)

    async def resume(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Resumes a paused experiment. See `Operations.resume`."""
        event = life.ExperimentResumed(reason=reason, by=self._asker.name)
        return await self._command(order_of(request_id, "resume", experiment, reason), event)

    async def cancel(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Ends a queued, running or paused experiment for good. See `Operations.cancel`."""
        event = life.ExperimentCancelled(reason=reason, by=self._asker.name)
        return await self._command(order_of(request_id, "cancel", experiment, reason), event)

    async def prioritize(self, experiment: UUID, *, priority: int, reason: str, request_id: UUID) -> Done:
        """Changes an unended experiment's priority; higher ones start first. See `Operations.prioritize`."""
        event = life.ExperimentPrioritized(priority=priority, reason=reason, by=self._asker.name)
        return await self._command(order_of(request_id, "prioritize", experiment, priority, reason), event)

    async def annotate(self, experiment: UUID, annotation: Annotation, *, request_id: UUID) -> Done:
        """Adds a note, a star or labels to an experiment in any state, or to a rollout. See `Operations.annotate`."""
        event = life.ExperimentAnnotated(**annotation._asdict(), by=self._asker.name)
        return await self._command(order_of(request_id, "annotate", experiment, *annotation), event)

    async def tag(self, experiment: UUID, group: UUID, *, priority: float, reason: str, request_id: UUID) -> Done:
        """Changes the priority of a group's experiences waiting for a batch. See `Operations.tag`."""
        event = ExperiencePrioritized(group=group, priority=priority, reason=reason, by=self._asker.name)
        return await self._ask(order_of(request_id, "tag", experiment, group, priority, reason), experiment, event)

    async def give_up(self, experiment: UUID, experience: UUID, *, reason: str, request_id: UUID) -> Done:
        """Retires an experience whose payload is lost, and abandons its unexecuted batch. See `Operations.give_up`."""
        event = ExperienceGivenUp(experience=experience, reason=reason, by=self._asker.name)
        return await self._ask(order_of(request_id, "give up", experiment, experience, reason), experiment, event)

    async def add_tasks(self, experiment: UUID, tasks: Sequence[str], *, request_id: UUID) -> Done:
        """Adds tasks, each a JSON object, to the task queue of a running experiment. See `Operations.add_tasks`."""
        await self._refresh()
        event = await adding(self._entry(experiment).spec, tasks, by=self._asker.name)
        order = order_of(request_id, "add tasks", experiment, tasks)
        return await self._ask(order, experiment, event, patient=True)

    async def end_tasks(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """Ends the task queue of a running experiment: no further task can be added. See `Operations.end_tasks`."""
        await self._refresh()
        event = ending(self._entry(experiment).spec, reason=reason, by=self._asker.name)
        order = order_of(request_id, "end tasks", experiment, reason)
        return await self._ask(order, experiment, event, patient=True)

    async def _ask(self, order: Order, experiment: UUID, event: Event, *, patient: bool = False) -> Done:
        """Executes an order by appending `event` in the experiment's run here, or rehearses it.

        Raises ConflictError without a run; if `patient`, the retryable UnreachableError for a run starting now, and
        WaitTimeoutError for one still to come.
        """
        await self._check_concerned(order)

        def checked_run() -> Run:
            """Returns the run for the event, or raises the errors of `_ask`."""
            if patient and self._decides and self.runs.of(experiment) is None:
                check_begun(self._entry(experiment).spine)
            return self._run_under_way(experiment, fix="see its state with rftd get")

        async def write(id: UUID) -> Position:
            """Appends the event under this id, in the run."""
            return await checked_run().command(event, Request(id, order.key, partial(self._orders.check, order)))

        if self._rehearses:
            checked_run()
            await self._rehearse(self._entry(experiment), event)

        return _done(await self._orders.carry_out(order, write))

    async def why(self, experiment: UUID) -> Why:
        """Returns the wait of each role, the most serious first; changes nothing. See `Operations.why`."""
        late = await self._late()
        entry = self._entry(experiment)
        return answer(entry, [*late, *self._waits(entry)], live=True, clock=self._clock)

    async def waits(self, experiment: UUID) -> list[Wait]:
        """Returns the waits of each role from memory, without waiting for the log. See `Operations.waits`."""
        entry = self._registry.entries.get(experiment)
        # Known to the tables, but not yet read by this daemon.
        return [] if entry is None else worst_first(self._waits(entry))

    def _waits(self, entry: Entry) -> list[Wait]:
        """Returns the waits of an experiment from memory."""
        experiment = entry.id
        if (lost := self.stopped(experiment)) is not None:
            waits = [lost_wait(lost)]
        elif (run := self.runs.of(experiment)) is not None:
            waits = run.waits()
        elif (broken := self.runs.broken.get(experiment)) is not None and not entry.spine.ended:
            waits = [broken_down(entry.unread or broken.reason, broken.since_ns)]
        elif not self._decides and not entry.spine.ended:
            waits = [decided_elsewhere(entry)]
        else:
            waits = [entry_wait(entry, self._current_line())]
        return [*waits, *blocked_log(self._log)]

    async def _late(self) -> list[Wait]:
        """Refreshes the registry; returns a wait for the log if it is away, or silent for `REFRESH_S`, else nothing."""
        try:
            async with asyncio.timeout(REFRESH_S):
                await self._refresh()
        except (TimeoutError, *UNREACHABLE_ERRORS) as error:
            return [silent_log(f"within {REFRESH_S:g} s" if isinstance(error, TimeoutError) else error.what)]
        return []

    def named(self, name_or_id: str) -> UUID:
        """Returns the id of an experiment by name or id, as of the records read so far. See `Operations.named`."""
        return named_entry(self._registry, name_or_id).id

    def looked(self, name_or_id: str) -> None:
        """Records the asker as a reader of an experiment with `limits.unseen_days`. See `Operations.looked`."""
        watched = [run for run in self.runs if isinstance(run, Run) and run.is_watched]
        # Few experiments use it, and a name lookup searches all experiments.
        if not watched:
            return
        try:
            experiment = self.named(name_or_id)
        except (NotFoundError, UsageError):  # known to the tables, but not yet read by this daemon
            return
        for run in watched:
            if run.state.experiment == experiment:
                run.looked(self._asker.name)

    async def archive(self, experiment: UUID, *, to: str, request_id: UUID) -> Done:
        """Moves the files of an ended experiment into a file (`to`, or a new file below the data folder), or in a
        rehearsal raises `Rehearsed` instead. See `Operations.archive`.
        """
        to = self._kept_in(to, "to")
        by = self._asker.name
        order = order_of(request_id, "archive", experiment, to)
        return await self._keep(
            order,
            lambda entry, id: self._archiver.archive(entry, to, id, key=request_id, by=by),
            lambda entry: self._archiver.foresee_archive(entry, to),
        )

    async def restore(self, experiment: UUID, *, source: str, request_id: UUID) -> Done:
        """Puts archived files back, from `source` if the archive moved; can be rehearsed. See `Operations.restore`."""
        source = self._kept_in(source, "source")
        by = self._asker.name
        order = order_of(request_id, "restore", experiment, source)
        return await self._keep(
            order,
            lambda entry, id: self._archiver.restore(entry, source, id, key=request_id, by=by),
            lambda entry: self._archiver.foresee_restore(entry, source),
        )

    async def remove(self, experiment: UUID, *, reason: str, archive: bool, request_id: UUID) -> Done:
        """Deletes an ended experiment's files (moves the files into an archive first if `archive`) and frees the
        name, or in a rehearsal raises `Rehearsed` instead. See `Operations.remove`.
        """
        by = self._asker.name
        order = order_of(request_id, "remove", experiment, reason, archive)
        return await self._keep(
            order,
            lambda entry, id: self._archiver.remove(entry, reason, archive, id, key=request_id, by=by),
            lambda entry: self._archiver.foresee_removal(entry, archive),
        )

    async def _keep(
        self,
        order: Order,
        work: Callable[[Entry, UUID], Awaitable[Position]],
        foresee: Callable[[Entry], Awaitable[Consequence]] | None = None,
    ) -> Done:
        """Executes an order on an ended experiment's files: `work` acts, `foresee` finds a rehearsal's consequence."""
        await self._check_concerned(order)

        async def write(id: UUID) -> Position:
            """Does the work with its event under this id; in a rehearsal raises `Rehearsed` before."""
            assert order.experiment is not None
            async with self._one_submission:
                await self._refresh()
                self._check_decides()
                entry = self._entry(order.experiment)
                if (run := self.runs.of(entry.id)) is not None and run.state.spine.ended:
                    # The log has the end; workers may still be writing, and an archive would copy half of a file.
                    await run.gone()
                await self._loss_check.compare_idle_heads(entry)
                if foresee is not None and self._rehearses:
                    self._end_rehearsal(await foresee(entry))
                return await work(entry, id)

        if self._rehearses:
            await write(order.key)
        return _done(await self._orders.carry_out(order, write))

    @property
    def allowances(self) -> Allowances:
        """Allow-lists of the daemon, applied to every asker except the owner. See `Operations.allowances`."""
        return self._allowances

    @property
    def keeping(self) -> Keeping:
        """Rules for dropping payloads and archiving files of ended experiments. See `Operations.keeping`."""
        return self._keeping

    @property
    def log_excess_bytes(self) -> int:
        """Bytes of the log above the size limit of the keeping rules after every droppable payload was dropped; 0
        within the limit. See `Operations.log_excess_bytes`.
        """
        return self._payloads.log_excess_bytes

    async def queued_by(self) -> dict[str, int]:
        """Returns the number of queued experiments by submitter's name. See `Operations.queued_by`."""
        registered = (await self.known()).entries.values()
        return dict(Counter(entry.spine.submitted_by for entry in registered if entry.status is Status.QUEUED))

    async def refusals(self) -> list[Position]:
        """Returns the positions of the newest refused request records, oldest first. See `Operations.refusals`."""
        return (await self.known()).requests.newest_refusals()

    async def dead_letters(self, tasks: Sequence[FailedTask]) -> list[Dead]:
        """Returns all dead letters, newest first; `tasks` are all failed tasks. See `Operations.dead_letters`."""
        await self._refresh()
        return await self._dead_letters.dead(tasks, self._registry.entries)

    async def retry_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        """Leases the failed task of a dead letter once more. See `Operations.retry_dead_letter`."""
        if self._rehearses:
            await self._verdicts.foresee_retry(dead, self._outlook)
        return await self._verdicts.retry(dead, by=self._signed(by), reason=reason, key=request_id)

    async def drop_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        """Marks a dead letter as dropped, with a reason. See `Operations.drop_dead_letter`."""
        if self._rehearses:
            self._verdicts.foresee_drop(dead)
        return await self._verdicts.drop(dead, by=self._signed(by), reason=reason, key=request_id)

    def _kept_in(self, name: str, field: str) -> str:
        """Returns the path of an archive file: any path for the owner, otherwise a plain file name in the archive
        folder. Raises NotAllowedError.
        """
        if not name or self._asker.is_owner:
            return name
        if not _ARCHIVE.fullmatch(name) or self._archiver.archives is None:
            raise NotAllowedError(
                "only the daemon's owner chooses the folder of an archive",
                field=field,
                fix="give a plain name, which is one in the daemon's own folder, or none",
            )
        return str(self._archiver.archives / name)

    def _signed(self, by: str) -> str:
        """Returns the author recorded for a verdict: `by` for the owner, the token's name for everybody else."""
        return by if self._asker.is_owner else self._asker.name

    async def _command(self, order: Order, event: Event) -> Done:
        """Executes or rehearses an order by appending `event`: in the experiment's run, or on its spine without one."""
        await self._check_concerned(order)

        def checked_entry() -> Entry:
            """Returns the entry, or raises the error for which no command can be appended."""
            assert order.experiment is not None
            entry = self._entry(order.experiment)
            self._check_decides()
            self._loss_check.check(entry)
            # Refused at once: a run waits for space indefinitely, and the caller would wait along.
            if isinstance(full := self._log.failure, LogFullError):
                raise LogFullError(full.what, where=full.where, fix=full.fix)
            return entry

        if self._rehearses:
            await self._refresh()
            await self._rehearse(checked_entry(), event)

        async def write(id: UUID) -> Position:
            """Appends the event under this id, in the run if there is one, else on the spine."""
            entry = checked_entry()
            run = self.runs.of(entry.id)
            if isinstance(run, Run):
                try:
                    return await run.command(event, Request(id, order.key, partial(self._orders.check, order)))
                except UnreachableError:
                    if not run.releasing:
                        raise
                # Its workers are leaving; a command in the meantime acts on the released experiment and is not refused.
                await run.gone()
            await self._refresh()  # a run ended just now may have appended unread records
            await self._loss_check.compare_idle_heads(entry)
            check_transition(entry.spine, event)
            command = requeued(event)
            draft = self._writer.draft(command, experiment=entry.id, id=id, correlation=order.key)
            return (await self._log.append([draft]))[0]

        return _done(await self._orders.carry_out(order, write))

    def _new(self, spec: ExperimentSpec, history: str = "") -> Consequence:
        """Returns the consequence of submitting `spec`; `history` names the steps shared with a parent."""
        line = self._current_line()
        return new_experiment(spec, line.entries, line.slots, history)

    async def _check_concerned(self, order: Order) -> None:
        """Raises NotAllowedError for a command about an experiment outside the asker's rights."""
        if self._asker.role < AccessRole.ADMIN and order.experiment is not None:
            await self._refresh()
            entry = self._entry(order.experiment)
            self._asker.check_concerned(entry.spine.submitted_by, name=entry.name)

    def _entry(self, experiment: UUID) -> Entry:
        """Returns the registry's entry of an experiment. Raises NotFoundError."""
        entry = self._registry.entries.get(experiment)
        if entry is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
        return entry

    def _run_under_way(self, experiment: UUID, *, fix: str, whose: str = "the") -> Run:
        """Returns this daemon's run of an experiment. Raises ConflictError, with the advice `fix`, if there is none;
        `whose` begins the error's sentence: `the` or `its` experiment.
        """
        self._check_decides()
        run = self.runs.of(experiment)
        if isinstance(run, Run):
            return run
        entry = self._registry.entries.get(experiment)
        state = entry.status if entry is not None else "unknown"
        raise ConflictError(f"{whose} experiment is {state}, and not under way", fix=fix)

    def _check_decides(self) -> None:
        """Raises ConflictError if this daemon decides about no experiment."""
        if not self._decides:
            raise ConflictError(
                "this daemon only starts explorers; another one on this log decides",
                fix="ask the daemon with --roles trainer",
            )

    def _current_line(self) -> Line:
        """Returns the experiments in starting order: running ones with a slot, then those waiting for a slot."""
        line = self._loss_check.free(self._registry.line())
        return Line(sorted(line, key=lambda entry: entry.id not in self.runs), self.runs.slots)

    async def _refresh(self, position: Position | None = None) -> None:
        """Reads the registry up to the log's present end, at least past `position`, one reader at a time; the first
        call runs the loss check.
        """
        async with self._reading:
            await (self._registry.catch_up() if position is None else self._registry.reach(position))
            await self._loss_check.hear(self._registry.entries, self.runs.stop)

    async def _reach(self, position: Position | None) -> None:
        """Brings the orders' folds, registry and dead letters, to the log's present end, at least past `position`."""
        await self._refresh(position)
        await self._dead_letters.refresh()


def _done(use: KeyUse) -> Done:
    """Returns the receipt of a recorded command."""
    return Done(use.event, use.position)
