"""`Supervisor`: takes experiments in, runs several at once, and carries out commands. Implements `Operations`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from rftd.daemon.dlq.desk import Desk
from rftd.daemon.dlq.letter import Dead, DeadLetterReceipt
from rftd.daemon.operations import Accepted, Done, Forked
from rftd.daemon.registry import Entry, Registry
from rftd.daemon.supervisor.collector import Collector
from rftd.daemon.supervisor.disk_guard import DiskGuard
from rftd.daemon.supervisor.hearing import Hearing
from rftd.daemon.supervisor.hosting import Hosting
from rftd.daemon.supervisor.inbox import Request, check_transition, paused_for
from rftd.daemon.supervisor.intake import Intake, WantedFork
from rftd.daemon.supervisor.keeper import Keeper
from rftd.daemon.supervisor.orders import Order, Orders, Verdicts, order_of
from rftd.daemon.supervisor.payloads import Keep, PayloadKeeper
from rftd.daemon.supervisor.run import Run
from rftd.daemon.supervisor.runs import Runs, UnderWay
from rftd.daemon.supervisor.submissions import Submissions
from rftd.daemon.why.answer import answer, blocked_log
from rftd.daemon.why.life import Line, broken_down, decided_elsewhere, entry_wait, lost_wait
from rftd.daemon.why.wait import Wait, Why
from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, LogFullError, LogLossError, NotFoundError
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.ops.tracing.tracer import Tracer
from rftd.streams.codec import Writer
from rftd.streams.envelope import Position
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import ExperienceGivenUp, ExperiencePrioritized
from rftd.streams.events.registry import Event
from rftd.streams.folds.commands import KeyUse
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.log import EventLog
from rftd.streams.spec import ExperimentSpec
from rftd.streams.split_submission import EXPLORE, ROLES
from rftd.workers.launcher.executor import Executor

HOSTED: Final = 64
"""The most experiments for which a daemon starts workers without deciding on them."""


class Supervisor:
    """One daemon's supervisor. `drive` runs for as long as the daemon."""

    def __init__(
        self,
        log: EventLog,
        executor: Executor,
        *,
        owner: UUID,
        clock: Clock,
        ids: Ids,
        logger: Logger,
        archives: Path | None = None,
        lost_after_s: float = limits.WORKER_LOST_AFTER_S,
        roles: frozenset[str] = ROLES,
        guard: DiskGuard | None = None,
        slots: int = 1,
        keep: Keep = Keep.ALWAYS,
        hearing: Hearing | None = None,
        known: Path | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`archives` is where archives go that nobody gave another place; else beside the experiment's folder.

        So many as `slots` experiments run at once, and workers of the `roles` are started. A daemon that starts
        explorers and no trainer decides nothing: another one on this log does. `keep` says how long the payload of
        experiences stays in the log. The `hearing` has heard survivors; `known` is a folder for what the spines say.
        """
        self._guard = guard
        self._roles = roles
        self._decides = roles != frozenset(("explorer",))
        self._log = log
        self._executor = executor
        self._owner = owner
        self._clock = clock
        self._logger = logger
        self._tracer = tracer
        self._of_runs: dict[str, Any] = {"owner": owner, "clock": clock, "ids": ids, "logger": logger, "roles": roles}
        self._of_runs["lost_after_s"] = lost_after_s
        self._registry = Registry(log, known, logger=logger)
        self._writer = Writer(source=f"daemon/{owner}", clock=clock, ids=ids)
        self._payloads = PayloadKeeper(
            log, lambda: self._registry.entries, self._state_of, self._writer, keep=keep, clock=clock, logger=logger
        )
        hearing = self._hearing = hearing or Hearing(log, None, logger=logger)
        self._keeper = Keeper(
            log,
            lambda: self._registry.entries,
            self._writer,
            archives,
            rewriting=self._payloads.rewriting,
            bereft=hearing.bereft,
            clock=clock,
            logger=logger,
        )
        self._desk = Desk(log, self._writer, clock=clock)
        self._orders = Orders((self._registry.commands, self._desk.commands), self._reach, clock=clock)
        self._verdicts = Verdicts(self._desk, self._orders, self._run_under_way)
        folders = self._one_submission = asyncio.Lock()
        """Held by whoever takes or frees a job's folder."""
        intake = Intake(log, self._registry.entries, self._writer, self._tidy, self._refresh, clock=clock, roles=roles)
        self._submissions = Submissions(intake, self._registry, self._orders, self._refresh, folders, executor.host)
        self._collector = Collector(log, self._at_rest, self._one_submission, clock=clock, logger=logger)
        if guard is not None:
            guard.folders, guard.collect = self._folders, lambda: self.collect(every=True)
        self._reading = asyncio.Lock()
        held = slots if self._decides else HOSTED  # elsewhere it was decided how many run
        note = self._note if self._decides else None
        self.runs: Final = Runs(self._run_of, slots=held, clock=clock, logger=logger, note=note, lost=hearing.meet)
        """The experiments under way."""

    async def drive(self) -> None:
        """Runs the queue until cancelled; workers under way are left to the next daemon, which adopts them."""
        async with self._one_submission:
            await self._refresh()
            # Before any run begins: what a crash left of a removed experiment lies where the next of its name goes.
            await self._tidy()
        await self.runs.drive(self._line)

    async def known(self) -> Registry:
        """Every experiment as the log has it now."""
        await self._refresh()
        return self._registry

    async def _tidy(self) -> None:
        if self._decides:
            await self._keeper.finish()

    async def _line(self) -> Sequence[Entry]:
        await self._refresh()
        if self._decides:
            return self._hearing.free(self._registry.line())
        return self._hearing.free(entry for entry in self._registry.under_way() if EXPLORE in entry.spine.halves)

    def _places(self) -> Line:
        """The line as it is: those who have a slot, then those who wait for one."""
        line = self._hearing.free(self._registry.line())
        return Line(sorted(line, key=lambda entry: entry.id not in self.runs), self.runs.slots)

    async def collect(self, *, every: bool = False) -> None:
        """Removes what no event names of experiments that have ended; else only where that was cut off."""
        await self._refresh()
        if self._decides:
            await self._collector.collect(every=every)

    async def keep_payloads(self) -> None:
        """Drops the payload of experiences that nobody needs any more, until cancelled."""
        if self._decides:
            await self._payloads.run(self._refresh)

    def _state_of(self, experiment: UUID) -> RunState | None:
        run = self.runs.of(experiment)
        return run.state if isinstance(run, Run) else None

    def _at_rest(self) -> dict[UUID, Entry]:
        """All but the experiments under way, which tidy their own folders when they end, and those that lost events.

        What named the files of these may be what was lost.
        """
        entries = self._registry.entries
        return {id: entry for id, entry in entries.items() if id not in self.runs and not self._hearing.bereft(entry)}

    def _folders(self) -> list[Path]:
        return [Path(entry.job_dir) for entry in self._registry.entries.values() if entry.spine.kept is Kept.HERE]

    async def drain(self) -> None:
        """Ends what is under way: its workers finish and leave; the next daemon goes on from there."""
        await self.runs.drain()

    async def _note(self, entry: Entry, error: BaseException) -> None:
        """Pauses an experiment whose run an error ended, as its controller; the next run goes on by itself."""
        await self._refresh()
        if entry.status is not Status.RUNNING:
            return
        await self._log.append(paused_for(error, entry.id, self._registry.fences, self._writer, self._owner))
        await self._refresh()

    def _run_of(self, entry: Entry) -> UnderWay:
        same = {**self._of_runs, "spine_offset": entry.spine_offset}
        if not self._decides:
            return Hosting(self._log, entry.id, self._executor, **same)
        hear = partial(self._hearing.hear_run, entry, self._executor)
        return Run(self._log, entry.id, self._executor, **same, guard=self._guard, hear=hear, tracer=self._tracer)

    async def accept_losses(self, names: Sequence[str], *, by: str) -> None:
        """Lets experiments go on without what the log lost, on record. Raises NotFoundError, UsageError."""
        await self._refresh()
        await self._hearing.accept(names, self._writer, by=by)

    def stopped(self, experiment: UUID) -> LogLossError | None:
        """See `Operations.stopped`."""
        return self._hearing.refusal(experiment)

    async def submit(self, config: dict[str, Any], *, request_id: UUID) -> Accepted:
        """See `Operations.submit`."""
        accepted = await self._submissions.submit(config, request_id)
        self.runs.look()
        return accepted

    async def check(self, config: dict[str, Any]) -> ExperimentSpec:
        """See `Operations.check`."""
        return await self._submissions.check(config)

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
        """See `Operations.fork`."""
        await self._refresh()
        self._hearing.check(self._entry(experiment))
        wanted = WantedFork(experiment, at_step=at_step, overrides=tuple(overrides), name=name, labels=labels)
        forked = await self._submissions.fork(wanted, request_id)
        self.runs.look()
        return forked

    async def pause(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """See `Operations.pause`."""
        event = life.ExperimentPaused(reason=reason)
        return await self._command(order_of(request_id, "pause", experiment, reason), event)

    async def resume(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """See `Operations.resume`."""
        event = life.ExperimentResumed(reason=reason)
        return await self._command(order_of(request_id, "resume", experiment, reason), event)

    async def cancel(self, experiment: UUID, *, reason: str, request_id: UUID) -> Done:
        """See `Operations.cancel`."""
        event = life.ExperimentCancelled(reason=reason)
        return await self._command(order_of(request_id, "cancel", experiment, reason), event)

    async def prioritize(self, experiment: UUID, *, priority: int, reason: str, request_id: UUID) -> Done:
        """See `Operations.prioritize`."""
        event = life.ExperimentPrioritized(priority=priority, reason=reason)
        return await self._command(order_of(request_id, "prioritize", experiment, priority, reason), event)

    async def tag(self, experiment: UUID, group: UUID, *, priority: float, reason: str, request_id: UUID) -> Done:
        """See `Operations.tag`."""
        event = ExperiencePrioritized(group=group, priority=priority, reason=reason)
        return await self._ask(order_of(request_id, "tag", experiment, group, priority, reason), experiment, event)

    async def give_up(self, experiment: UUID, experience: UUID, *, reason: str, request_id: UUID) -> Done:
        """See `Operations.give_up`."""
        event = ExperienceGivenUp(experience=experience, reason=reason)
        return await self._ask(order_of(request_id, "give up", experiment, experience, reason), experiment, event)

    async def _ask(self, order: Order, experiment: UUID, event: Event) -> Done:
        """Carries out an order that only a run under way can."""

        async def write(id: UUID) -> Position:
            run = self._run_under_way(experiment, fix="see its state with rftd get")
            return await run.command(event, Request(id, order.key, partial(self._orders.check, order)))

        return _done(await self._orders.carry_out(order, write))

    async def why(self, experiment: UUID) -> Why:
        """See `Operations.why`."""
        await self._refresh()
        entry = self._entry(experiment)
        if (lost := self.stopped(experiment)) is not None:
            waits = [lost_wait(lost)]
        elif (run := self.runs.of(experiment)) is not None:
            waits = run.waits()
        elif (broken := self.runs.broken.get(experiment)) is not None and not entry.spine.ended:
            waits = [broken_down(entry.unread or broken.reason, broken.since_ns)]
        elif not self._decides and not entry.spine.ended:
            waits = [decided_elsewhere(entry)]
        else:
            waits = [entry_wait(entry, self._places())]
        return answer(entry, [*waits, *blocked_log(self._log)], live=True, clock=self._clock)

    def opening(self, experiment: UUID) -> list[Wait]:
        """See `Operations.opening`."""
        run = self.runs.of(experiment)
        return [] if run is None else run.opening()

    async def archive(self, experiment: UUID, *, to: str, request_id: UUID) -> Done:
        """See `Operations.archive`."""
        order = order_of(request_id, "archive", experiment, to)
        return await self._keep(order, lambda entry, id: self._keeper.archive(entry, to, id, key=request_id))

    async def restore(self, experiment: UUID, *, source: str, request_id: UUID) -> Done:
        """See `Operations.restore`."""
        order = order_of(request_id, "restore", experiment, source)
        return await self._keep(order, lambda entry, id: self._keeper.restore(entry, source, id, key=request_id))

    async def remove(self, experiment: UUID, *, reason: str, archive: bool, request_id: UUID) -> Done:
        """See `Operations.remove`."""
        order = order_of(request_id, "remove", experiment, reason, archive)
        return await self._keep(
            order, lambda entry, id: self._keeper.remove(entry, reason, archive, id, key=request_id)
        )

    async def _keep(self, order: Order, work: Callable[[Entry, UUID], Awaitable[Position]]) -> Done:
        async def write(id: UUID) -> Position:
            assert order.experiment is not None
            async with self._one_submission:
                await self._refresh()
                self._check_decides()
                entry = self._entry(order.experiment)
                if (run := self.runs.of(entry.id)) is not None and run.state.spine.ended:
                    # The log has its end; its workers may still be writing, and an archive would copy half of a file.
                    await run.gone()
                return await work(entry, id)

        return _done(await self._orders.carry_out(order, write))

    async def refusals(self) -> list[Position]:
        """See `Operations.refusals`."""
        return (await self.known()).requests.newest_refusals()

    async def dead_letters(self, tasks: Sequence[FailedTask]) -> list[Dead]:
        """See `Operations.dead_letters`."""
        await self._refresh()
        return await self._desk.dead(tasks, self._registry.entries)

    async def retry_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        """See `Operations.retry_dead_letter`."""
        return await self._verdicts.retry(dead, by=by, reason=reason, key=request_id)

    async def drop_dead_letter(self, dead: Dead, *, by: str, reason: str, request_id: UUID) -> DeadLetterReceipt:
        """See `Operations.drop_dead_letter`."""
        return await self._verdicts.drop(dead, by=by, reason=reason, key=request_id)

    async def _command(self, order: Order, event: Event) -> Done:
        async def write(id: UUID) -> Position:
            assert order.experiment is not None
            entry = self._entry(order.experiment)
            self._check_decides()
            self._hearing.check(entry)
            # Refused at once: a run waits for space without an end, and its caller would wait with it.
            if isinstance(full := self._log.failure, LogFullError):
                raise LogFullError(full.what, where=full.where, fix=full.fix)
            if isinstance(run := self.runs.of(entry.id), Run):
                return await run.command(event, Request(id, order.key, partial(self._orders.check, order)))
            check_transition(entry.spine, event)
            draft = self._writer.draft(event, experiment=entry.id, id=id, correlation=order.key)
            return (await self._log.append([draft]))[0]

        return _done(await self._orders.carry_out(order, write))

    def _entry(self, experiment: UUID) -> Entry:
        """The experiment. Raises NotFoundError."""
        entry = self._registry.entries.get(experiment)
        if entry is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
        return entry

    def _run_under_way(self, experiment: UUID, *, fix: str, whose: str = "the") -> Run:
        """The run of an experiment. Raises ConflictError if none is under way here."""
        self._check_decides()
        run = self.runs.of(experiment)
        if isinstance(run, Run):
            return run
        entry = self._registry.entries.get(experiment)
        state = entry.status if entry is not None else "unknown"
        raise ConflictError(f"{whose} experiment is {state}, and not under way", fix=fix)

    def _check_decides(self) -> None:
        if not self._decides:
            raise ConflictError(
                "this daemon only starts explorers; another one on this log decides",
                fix="ask the daemon with --roles trainer",
            )

    async def _refresh(self, position: Position | None = None) -> None:
        """Reads the registry up to the log's present heads; one reader at a time. The first hears the survivors."""
        async with self._reading:
            await (self._registry.catch_up() if position is None else self._registry.reach(position))
            await self._hearing.hear(self._registry.entries, self.runs.stop)

    async def _reach(self, position: Position | None) -> None:
        """Brings all that orders look at up to date."""
        await self._refresh(position)
        await self._desk.refresh()


def _done(use: KeyUse) -> Done:
    return Done(use.event, use.position)
