"""`Supervisor`: takes experiments in, runs them one by one, and carries out commands. Implements `Operations`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from rftd.daemon.dlq.desk import Desk
from rftd.daemon.dlq.letter import Dead, DeadLetterReceipt
from rftd.daemon.operations import Accepted, Forked
from rftd.daemon.supervisor.collector import Collector
from rftd.daemon.supervisor.disk_guard import DiskGuard
from rftd.daemon.supervisor.forking import check_parent, evaluated, forked_spec, lineage_note, moved
from rftd.daemon.supervisor.keeper import Keeper
from rftd.daemon.supervisor.preflight import preflight
from rftd.daemon.supervisor.registry import Entry, Registry
from rftd.daemon.supervisor.run import Run, check_transition
from rftd.daemon.why.answer import worst_first
from rftd.daemon.why.life import entry_waits
from rftd.daemon.why.wait import Why
from rftd.ops import faults, limits
from rftd.ops.clock import Clock, iso
from rftd.ops.errors import ConflictError, FencedError, LogFullError, NotFoundError
from rftd.ops.ids import Ids, derive
from rftd.ops.logs import Logger
from rftd.streams.codec import Writer
from rftd.streams.envelope import Draft, Position
from rftd.streams.events import experiment as life
from rftd.streams.events.registry import Event
from rftd.streams.folds.failed_tasks import FailedTask
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.log import EventLog
from rftd.streams.patience import append_when_space
from rftd.streams.role import as_refs
from rftd.streams.shared_history import shared_history
from rftd.streams.spec import ExperimentSpec
from rftd.workers.executors.executor import Executor

IDLE_S = 0.5


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
        local_workers: bool = True,
        guard: DiskGuard | None = None,
    ) -> None:
        """`archives` is where archives go that nobody gave another place; else beside the experiment's folder."""
        self._guard = guard
        self._local_workers = local_workers
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
        self._collector = Collector(log, self._at_rest, self._one_submission, clock=clock, logger=logger)
        if guard is not None:
            guard.folders, guard.collect = self._folders, lambda: self.collect(every=True)
        self._reading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._draining = False
        self.run: Run | None = None
        """The experiment under way."""

    async def drive(self) -> None:
        """Runs the queue until cancelled; workers under way are left to the next daemon, which adopts them."""
        async with self._one_submission:
            await self._refresh()
            await self._keeper.finish()
        while not self._draining:
            await self._refresh()
            entry = self._registry.next_in_line()
            if entry is None:
                self._changed.clear()
                try:
                    async with asyncio.timeout(IDLE_S):
                        await self._changed.wait()
                except TimeoutError:
                    continue
                continue
            await self._run(entry)

    async def collect(self, *, every: bool = False) -> None:
        """Removes what no event names of experiments that have ended; else only where that was cut off."""
        await self._refresh()
        await self._collector.collect(every=every)

    def _at_rest(self) -> dict[UUID, Entry]:
        """All but the experiment under way, which tidies its own folder when it ends."""
        busy = self.run.state.experiment if self.run is not None else None
        return {id: entry for id, entry in self._registry.entries.items() if id != busy}

    def _folders(self) -> list[Path]:
        entries = self._registry.entries.values()
        return [Path(entry.job_dir) for entry in entries if entry.spine.kept is Kept.HERE]

    async def drain(self) -> None:
        """Ends the run under way: its workers finish and leave; the next daemon goes on from there."""
        self._draining = True
        if self.run is not None:
            await self.run.drain()

    async def _run(self, entry: Entry) -> None:
        self.run = Run(
            self._log,
            entry.id,
            self._executor,
            owner=self._owner,
            clock=self._clock,
            ids=self._ids,
            logger=self._logger,
            lost_after_s=self._lost_after_s,
            local_workers=self._local_workers,
            spine_offset=entry.spine_offset,
            guard=self._guard,
        )
        self._logger.info("experiment.run", experiment=str(entry.id), name=entry.name, state=entry.status)
        try:
            await self.run.drive()
        except FencedError:
            self._logger.warning("experiment.taken_over", experiment=str(entry.id))
            raise
        finally:
            self.run = None

    async def submit(self, config: dict[str, Any], *, request_id: UUID) -> Accepted:
        """See `Operations.submit`."""
        from rftd.daemon.config.loading import check_config

        spec = await asyncio.to_thread(lambda: preflight(check_config(config)))
        experiment = derive(request_id, "experiment")
        async with self._one_submission:
            await self._refresh()
            known = self._registry.entries.get(experiment)
            if known is None:
                spec = await self._housed(spec)
                self._room()
            draft = self._writer.draft(life.ExperimentSubmitted(spec=spec), experiment=experiment, id=request_id)
            faults.point("submission.before_append")
            position = (await self._log.append([draft]))[0]
            faults.point("submission.between_appends")
            if known is None or known.status is Status.SUBMITTED:
                await self._accept(experiment, spec)
        faults.point("submission.after_append")
        self._changed.set()
        return Accepted(
            experiment=experiment, name=spec.name, event=request_id, position=position, warnings=spec.warnings
        )

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
            child = derive(request_id, "experiment")
            known = self._registry.entries.get(child)
            if known is None or known.status is Status.SUBMITTED:
                spec, event = await self._forked(experiment, at_step, overrides, name, labels)
                if known is None:
                    spec = await self._housed(spec)
                    self._room()
                else:
                    assert known.spine.spec is not None
                    spec = known.spine.spec
            elif known.spine.forked is None or known.spine.spec is None:
                raise ConflictError("this request id is that of another command", fix="send a new one")
            else:
                spec, event = known.spine.spec, known.spine.forked
            drafts = [
                self._writer.draft(life.ExperimentSubmitted(spec=spec), experiment=child, id=request_id),
                self._writer.draft(event, experiment=child, id=derive(child, "fork")),
            ]
            position = (await append_when_space(self._log, drafts, clock=self._clock))[-1]
            if known is None or known.status is Status.SUBMITTED:
                await self._accept(child, spec)
        self._changed.set()
        return Forked(
            experiment=child,
            name=spec.name,
            event=request_id,
            position=position,
            warnings=spec.warnings,
            parent=event.parent,
            at_step=event.at_step,
        )

    async def _forked(
        self, experiment: UUID, at_step: int, overrides: Sequence[str], name: str | None, labels: dict[str, str]
    ) -> tuple[ExperimentSpec, life.ExperimentForked]:
        """The fork's specification and what it shares. Raises NotFoundError, ConfigError, DataError, ConflictError."""
        entry = self._registry.entries.get(experiment)
        if entry is None or entry.spine.spec is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
        check_parent(entry.name, entry.spine)
        parent = entry.spine.spec
        shared = await shared_history(self._log, experiment, at_step)
        if shared.forked.parent != experiment and shared.spine.spec is not None:
            check_parent(shared.spine.spec.name, shared.spine)
        wanted = name or self._free_name(f"{entry.name}-fork-{at_step}", Path(parent.job_dir).parent)
        spec = await asyncio.to_thread(forked_spec, parent, shared, overrides, name=wanted, labels=labels)
        notes = lineage_note(experiment, entry.name, shared)
        spec = msgspec.structs.replace(spec, warnings=(*spec.warnings, *notes))
        return spec, msgspec.structs.replace(shared.forked, evaluated=evaluated(spec, shared))

    def _free_name(self, name: str, folder: Path) -> str:
        """The name, or with a number behind it if an experiment or a folder has it."""
        taken = {entry.name for entry in self._registry.entries.values()}
        candidates = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(each for each in candidates if each not in taken and not (folder / each).exists())

    async def pause(self, experiment: UUID, *, reason: str, request_id: UUID) -> Position:
        """See `Operations.pause`."""
        return await self._command(experiment, life.ExperimentPaused(reason=reason), request_id)

    async def resume(self, experiment: UUID, *, reason: str, request_id: UUID) -> Position:
        """See `Operations.resume`."""
        return await self._command(experiment, life.ExperimentResumed(reason=reason), request_id)

    async def cancel(self, experiment: UUID, *, reason: str, request_id: UUID) -> Position:
        """See `Operations.cancel`."""
        return await self._command(experiment, life.ExperimentCancelled(reason=reason), request_id)

    async def why(self, experiment: UUID) -> Why:
        """See `Operations.why`."""
        await self._refresh()
        entry = self._registry.entries.get(experiment)
        if entry is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
        if self.run is not None and self.run.state.experiment == experiment:
            waits = self.run.waits()
        else:
            waits = worst_first(list(entry_waits(entry, list(self._registry.entries.values()))))
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
            entry = self._registry.entries.get(experiment)
            if entry is None:
                raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
            if self.run is not None and self.run.state.experiment == experiment and self.run.state.spine.ended:
                await self.run.gone()
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
        if self.run is not None and self.run.state.experiment == task.experiment:
            return await self.run.retry(task, by=by, reason=reason, request_id=event)
        entry = self._registry.entries.get(task.experiment)
        state = entry.status if entry is not None else "unknown"
        raise ConflictError(f"its experiment is {state}, and not under way", fix="fork it, or submit a new one")

    async def _command(self, experiment: UUID, event: Event, request_id: UUID) -> Position:
        await self._refresh()
        entry = self._registry.entries.get(experiment)
        if entry is None:
            raise NotFoundError(f"no experiment {experiment}", fix="see rftd ls")
        if isinstance(full := self._log.failure, LogFullError):
            raise LogFullError(full.what, where=full.where, fix=full.fix)
        if self.run is not None and self.run.state.experiment == experiment:
            return await self.run.command(event, request_id)
        check_transition(entry.spine, event)
        draft = self._writer.draft(event, experiment=experiment, id=request_id)
        position = (await self._log.append([draft]))[0]
        await self._refresh()
        return position

    async def _accept(self, experiment: UUID, spec: ExperimentSpec) -> None:
        heads = as_refs(await self._log.heads())
        events: list[Event] = [life.ExperimentWarned(text=text) for text in spec.warnings]
        events.append(life.ExperimentAccepted(start=heads))
        drafts: list[Draft] = [
            self._writer.draft(event, experiment=experiment, id=derive(experiment, "accept", number))
            for number, event in enumerate(events)
        ]
        await append_when_space(self._log, drafts, clock=self._clock)

    async def _housed(self, spec: ExperimentSpec) -> ExperimentSpec:
        """The specification with a job folder of its own. Raises ConflictError if the folder is in use."""
        live = [entry for entry in self._registry.entries.values() if entry.status and not entry.status.ended]
        if any(entry.job_dir == spec.job_dir for entry in live):
            raise ConflictError(
                f"an experiment that has not ended uses {spec.job_dir}", field="name", fix="cancel it, or choose a name"
            )
        await self._keeper.finish()
        archived = [entry for entry in self._registry.entries.values() if entry.spine.kept is Kept.ARCHIVED]
        if any(entry.job_dir == spec.job_dir for entry in archived):
            raise ConflictError(
                f"the files of an archived experiment belong into {spec.job_dir}",
                field="name",
                fix="choose another name, or remove that experiment with rftd rm",
            )
        used = await asyncio.to_thread(_used, Path(spec.job_dir))
        if not used:
            return spec
        if spec.config.get("continue_from_checkpoint", True):
            raise ConflictError(
                f"{spec.job_dir} holds another experiment",
                field="name",
                fix="choose another name, or set continue_from_checkpoint: false for a folder with a time stamp",
            )
        stamp = _stamp(self._clock.now_ns())
        return moved(spec, f"{spec.name}_{stamp}", f"{spec.job_dir}_{stamp}")

    def _room(self) -> None:
        queued = sum(1 for entry in self._registry.entries.values() if entry.status is Status.QUEUED)
        if queued >= limits.QUEUED_EXPERIMENTS:
            raise ConflictError(f"{queued} experiments wait already", fix="cancel some of them")

    async def _refresh(self) -> None:
        """Reads the registry up to the log's present heads; one reader at a time."""
        async with self._reading:
            await self._registry.catch_up()


def _used(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _stamp(now_ns: int) -> str:
    return iso(now_ns)[:19].translate(str.maketrans("", "", "-:T"))
