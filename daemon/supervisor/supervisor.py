"""`Supervisor`: takes experiments in, runs several at once, and carries out commands. Implements `Operations`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from rftd.daemon.dlq.desk import Desk
from rftd.daemon.dlq.letter import Dead, DeadLetterReceipt
from rftd.daemon.operations import Accepted, Forked
from rftd.daemon.supervisor.collector import Collector
from rftd.daemon.supervisor.disk_guard import DiskGuard
from rftd.daemon.supervisor.hosting import Hosting
from rftd.daemon.supervisor.intake import Intake
from rftd.daemon.supervisor.keeper import Keeper
from rftd.daemon.supervisor.preflight import preflight
from rftd.daemon.supervisor.registry import Entry, Registry
from rftd.daemon.supervisor.run import Run, check_transition
from rftd.daemon.supervisor.runs import Runs, UnderWay
from rftd.daemon.why.answer import worst_first
from rftd.daemon.why.life import Line, decided_elsewhere, entry_waits
from rftd.daemon.why.wait import Why
from rftd.ops import faults, limits
from rftd.ops.clock import Clock
from rftd.ops.errors import ConflictError, LogFullError, NotFoundError
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.streams.codec import Writer
from rftd.streams.envelope import Position
from rftd.streams.events import experiment as life
from rftd.streams.events.batch import ExperiencePrioritized
from rftd.streams.events.registry import Event
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.spine import Kept
from rftd.streams.halves import EXPLORE, ROLES
from rftd.streams.log import EventLog
from rftd.workers.executors.executor import Executor

HOSTED: Final = 64
"""Most experiments that a daemon works for which does not decide."""


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
    ) -> None:
        """`archives` is where archives go that nobody gave another place; else beside the experiment's folder.

        So many as `slots` experiments run at once, and workers of the `roles` are started. A daemon that starts
        explorers and no trainer decides nothing: another one on this log does.
        """
        self._guard = guard
        self._roles = roles
        self._decides = roles != frozenset(("explorer",))
        self._log = log
        self._executor = executor
        self._owner = owner
        self._clock = clock
        self._ids = ids
        self._logger = logger
        self._lost_after_s = lost_after_s
        self._registry = Registry(log)
        self._writer = Writer(source=f"daemon/{owner}", clock=clock, ids=ids)
        entries = self._registry.entries
        self._keeper = Keeper(log, lambda: entries, self._writer, archives, clock=clock, logger=logger)
        self._desk = Desk(log, self._writer, clock=clock)
        self._one_submission = asyncio.Lock()
        """Held by whoever takes or frees a job's folder."""
        self._intake = Intake(log, entries, self._writer, self._tidy, self._refresh, clock=clock, roles=roles)
        self._collector = Collector(log, self._at_rest, self._one_submission, clock=clock, logger=logger)
        if guard is not None:
            guard.folders, guard.collect = self._folders, lambda: self.collect(every=True)
        self._reading = asyncio.Lock()
        held = slots if self._decides else HOSTED  # elsewhere it was decided how many run
        self.runs: Final = Runs(self._run_of, slots=held, clock=clock, logger=logger)
        """The experiments under way."""

    async def drive(self) -> None:
        """Runs the queue until cancelled; workers under way are left to the next daemon, which adopts them."""
        async with self._one_submission:
            await self._refresh()
            await self._tidy()
        await self.runs.drive(self._line)

    async def _tidy(self) -> None:
        if self._decides:
            await self._keeper.finish()

    async def _line(self) -> Sequence[Entry]:
        await self._refresh()
        if self._decides:
            return self._registry.line()
        return [entry for entry in self._registry.under_way() if EXPLORE in entry.spine.halves]

    def _places(self) -> Line:
        """The line as it is: those who have a slot, then those who wait for one."""
        return Line(sorted(self._registry.line(), key=lambda entry: entry.id not in self.runs), self.runs.slots)

    async def collect(self, *, every: bool = False) -> None:
        """Removes what no event names of experiments that have ended; else only where that was cut off."""
        await self._refresh()
        if self._decides:
            await self._collector.collect(every=every)

    def _at_rest(self) -> dict[UUID, Entry]:
        """All but the experiments under way, which tidy their own folders when they end."""
        return {id: entry for id, entry in self._registry.entries.items() if id not in self.runs}

    def _folders(self) -> list[Path]:
        entries = self._registry.entries.values()
        return [Path(entry.job_dir) for entry in entries if entry.spine.kept is Kept.HERE]

    async def drain(self) -> None:
        """Ends what is under way: its workers finish and leave; the next daemon goes on from there."""
        await self.runs.drain()

    def _run_of(self, entry: Entry) -> UnderWay:
        if not self._decides:
            return Hosting(
                self._log,
                entry.id,
                self._executor,
                owner=self._owner,
                clock=self._clock,
                ids=self._ids,
                logger=self._logger,
                roles=self._roles,
                lost_after_s=self._lost_after_s,
                spine_offset=entry.spine_offset,
            )
        return Run(
            self._log,
            entry.id,
            self._executor,
            owner=self._owner,
            clock=self._clock,
            ids=self._ids,
            logger=self._logger,
            lost_after_s=self._lost_after_s,
            roles=self._roles,
            spine_offset=entry.spine_offset,
            guard=self._guard,
        )

    async def submit(self, config: dict[str, Any], *, request_id: UUID) -> Accepted:
        """See `Operations.submit`."""
        from rftd.daemon.config.loading import check_config

        spec = await asyncio.to_thread(lambda: preflight(check_config(config)))
        async with self._one_submission:
            await self._refresh()
            accepted = await self._intake.submit(spec, request_id=request_id)
        faults.point("submission.after_append")
        self.runs.look()
        return accepted

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
        async with self._one_submission:
            await self._refresh()
            forked = await self._intake.fork(
                experiment, at_step=at_step, overrides=overrides, name=name, labels=labels, request_id=request_id
            )
        self.runs.look()
        return forked

    async def pause(self, experiment: UUID, *, reason: str, request_id: UUID) -> Position:
        """See `Operations.pause`."""
        return await self._command(experiment, life.ExperimentPaused(reason=reason), request_id)

    async def resume(self, experiment: UUID, *, reason: str, request_id: UUID) -> Position:
        """See `Operations.resume`."""
        return await self._command(experiment, life.ExperimentResumed(reason=reason), request_id)

    async def cancel(self, experiment: UUID, *, reason: str, request_id: UUID) -> Position:
        """See `Operations.cancel`."""
        return await self._command(experiment, life.ExperimentCancelled(reason=reason), request_id)

    async def prioritize(self, experiment: UUID, *, priority: int, reason: str, request_id: UUID) -> Position:
        """See `Operations.prioritize`."""
        event = life.ExperimentPrioritized(priority=priority, reason=reason)
        return await self._command(experiment, event, request_id)

    async def tag(self, experiment: UUID, group: UUID, *, priority: float, reason: str, request_id: UUID) -> Position:
        """See `Operations.tag`."""
        await self._refresh()
        self._check_decides()
        if not isinstance(run := self.runs.of(experiment), Run):
            entry = self._registry.entries.get(experiment)
            state = entry.status if entry is not None else "unknown"
            raise ConflictError(f"the experiment is {state}, and not under way", fix="see its state with rftd get")
        event = ExperiencePrioritized(group=group, priority=priority, reason=reason)
        return await run.command(event, request_id)

    async def why(self, experiment: UUID) -> Why:
        """See `Operations.why`."""
        await self._refresh()
        entry = self._registry.entries.get(experiment)
        if entry is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
        if (run := self.runs.of(experiment)) is not None:
            waits = run.waits()
        elif not self._decides and not entry.spine.ended:
            waits = [decided_elsewhere(entry)]
        else:
            waits = worst_first(list(entry_waits(entry, self._places())))
        return Why(
            experiment=str(experiment),
            name=entry.name,
            status=entry.status.value if entry.status is not None else "unknown",
            live=True,
            asked_ns=self._clock.now_ns(),
            waits=waits,
        )

    async def archive(self, experiment: UUID, *, to: str, request_id: UUID) -> Position:
        """See `Operations.archive`."""
        return await self._keep(experiment, lambda entry: self._keeper.archive(entry, to, request_id))

    async def restore(self, experiment: UUID, *, source: str, request_id: UUID) -> Position:
        """See `Operations.restore`."""
        return await self._keep(experiment, lambda entry: self._keeper.restore(entry, source, request_id))

    async def remove(self, experiment: UUID, *, reason: str, archive: bool, request_id: UUID) -> Position:
        """See `Operations.remove`."""
        return await self._keep(experiment, lambda entry: self._keeper.remove(entry, reason, archive, request_id))

    async def _keep(self, experiment: UUID, work: Callable[[Entry], Awaitable[Position]]) -> Position:
        async with self._one_submission:
            await self._refresh()
            self._check_decides()
            entry = self._registry.entries.get(experiment)
            if entry is None:
                raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
            if (run := self.runs.of(experiment)) is not None and run.state.spine.ended:
                await run.gone()
            position = await work(entry)
            await self._refresh()
            return position

    async def dead_letters(self, tasks: Sequence[FailedTask]) -> list[Dead]:
        """See `Operations.dead_letters`."""
        await self._refresh()
        return await self._desk.dead(tasks, self._registry.entries)

    async def retry_dead_letter(self, dead: Dead, *, by: str, reason: str) -> DeadLetterReceipt:
        """See `Operations.retry_dead_letter`."""
        return await self._desk.retry(dead, self._give_out, by=by, reason=reason)

    async def drop_dead_letter(self, dead: Dead, *, by: str, reason: str) -> DeadLetterReceipt:
        """See `Operations.drop_dead_letter`."""
        return await self._desk.drop(dead, by=by, reason=reason)

    async def _give_out(self, task: FailedTask, by: str, reason: str, event: UUID) -> Position:
        """Gives a failed task out once more. Raises ConflictError if nothing of it can be trained any more."""
        await self._refresh()
        self._check_decides()
        if isinstance(run := self.runs.of(task.experiment), Run):
            return await run.retry(task, by=by, reason=reason, request_id=event)
        entry = self._registry.entries.get(task.experiment)
        state = entry.status if entry is not None else "unknown"
        raise ConflictError(f"its experiment is {state}, and not under way", fix="fork it, or submit a new one")

    async def _command(self, experiment: UUID, event: Event, request_id: UUID) -> Position:
        await self._refresh()
        entry = self._registry.entries.get(experiment)
        if entry is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
        self._check_decides()
        if isinstance(full := self._log.failure, LogFullError):
            raise LogFullError(full.what, where=full.where, fix=full.fix)
        if isinstance(run := self.runs.of(experiment), Run):
            return await run.command(event, request_id)
        check_transition(entry.spine, event)
        draft = self._writer.draft(event, experiment=experiment, id=request_id)
        position = (await self._log.append([draft]))[0]
        await self._refresh()
        return position

    def _check_decides(self) -> None:
        if not self._decides:
            raise ConflictError(
                "this daemon only starts explorers; another one on this log decides",
                fix="ask the daemon with --roles trainer",
            )

    async def _refresh(self) -> None:
        """Reads the registry up to the log's present heads; one reader at a time."""
        async with self._reading:
            await self._registry.catch_up()
