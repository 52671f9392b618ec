"""`Supervisor`: runs several experiments at once, and carries out commands: implements `Operations`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from rftd.daemon.run.dlq.dead_letter_service import DeadLetterService
from rftd.daemon.run.registry import Entry, Registry
from rftd.daemon.run.supervisor.archiver import Archiver
from rftd.daemon.run.supervisor.archiving import ARCHIVE_RULE_AUTHOR, Archiving
from rftd.daemon.run.supervisor.collector import Collector
from rftd.daemon.run.supervisor.commands import AskedCommands
from rftd.daemon.run.supervisor.disk_guard import DiskGuard
from rftd.daemon.run.supervisor.hosting import Hosting
from rftd.daemon.run.supervisor.inbox import paused_for
from rftd.daemon.run.supervisor.intake import Intake
from rftd.daemon.run.supervisor.loss_check import LossCheck, Survivors
from rftd.daemon.run.supervisor.orders import Orders, Verdicts, order_of
from rftd.daemon.run.supervisor.payloads import PayloadKeeper
from rftd.daemon.run.supervisor.run import Run
from rftd.daemon.run.supervisor.runs import Runs, UnderWay
from rftd.daemon.run.supervisor.submissions import Submissions
from rftd.daemon.run.supervisor.sweeping import SweepDriver
from rftd.daemon.serve.keeping import Keeping
from rftd.daemon.trust.allowances import NOTHING_MORE, Allowances
from rftd.ops import limits
from rftd.ops.clock import Clock
from rftd.ops.ids import Ids, derive
from rftd.ops.logs import Logger
from rftd.ops.tracing.tracer import Tracer
from rftd.storage.files.unreferenced import remove
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.log.codec import Writer
from rftd.streams.log.log import EventLog
from rftd.streams.log.writers import source_of
from rftd.streams.spec.split_submission import EXPLORE, ROLES
from rftd.workers.hosts.executor import Executor

HOSTED: Final = 64
"""Maximum number of experiments for which a daemon without decisions (`--roles explorer`) starts workers."""


class Supervisor(AskedCommands):
    """Runs the experiments of one daemon and executes its commands; `drive` lasts as long as the daemon."""

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
        release_after_s: float = limits.RELEASE_AFTER_S,
        roles: frozenset[str] = ROLES,
        guard: DiskGuard | None = None,
        slots: int = 1,
        keeping: Keeping = Keeping(),  # noqa: B008 - it is frozen
        loss_check: LossCheck | None = None,
        snapshots: Path | None = None,
        tracer: Tracer | None = None,
        allowances: Allowances = NOTHING_MORE,
    ) -> None:
        """`archives` is the default folder of archives; without one, archives lie beside the experiment's folder.

        `slots` experiments run at once, with workers of the `roles`; a daemon of explorers alone decides nothing.
        Workers leave `release_after_s` seconds into a person's pause. `keeping` has the rules for payloads and files,
        `snapshots` is the folder of registry snapshots.
        """
        self._roles = roles
        self._decides = roles != frozenset(("explorer",))
        self._log = log
        self._executor = executor
        self._owner = owner
        self._clock = clock
        self._logger = logger
        common: dict[str, Any] = {"owner": owner, "clock": clock, "ids": ids, "logger": logger, "roles": roles}
        self._run_args = {**common, "lost_after_s": lost_after_s}
        self._deciding_args: dict[str, Any] = {"guard": guard, "tracer": tracer, "led": set[UUID]()}
        self._release_after_s = release_after_s
        self._allowances = allowances
        self._registry = Registry(log, snapshots, logger=logger)
        self._writer = Writer(source=source_of("daemon", owner), clock=clock, ids=ids)
        self._keeping = keeping
        watched: dict[str, Any] = {"clock": clock, "logger": logger}
        self._payloads = PayloadKeeper(log, self._entries, self._state_of, self._writer, keeping=keeping, **watched)
        self._loss_check = loss_check or LossCheck(log, None, logger=logger)
        self._archiver = Archiver(
            log,
            self._entries,
            self._writer,
            archives,
            rewriting=self._payloads.rewriting,
            loss_check=self._loss_check,
            clock=clock,
            logger=logger,
        )
        self._dead_letters = DeadLetterService(log, self._writer, clock=clock)
        self._orders = Orders((self._registry.commands, self._dead_letters.commands), self._reach, clock=clock)
        self._verdicts = Verdicts(self._dead_letters, self._orders, self._run_under_way, self._entry)
        self._reading, self._one_submission = asyncio.Lock(), asyncio.Lock()
        folders = self._one_submission  # held for taking or freeing a job's folder
        intake = Intake(log, self._registry.entries, self._writer, self._tidy, self._refresh, clock=clock, roles=roles)
        own = self._loss_check.claims.own
        self._submissions = Submissions(
            intake, self._registry, self._orders, self._refresh, folders, executor.host, allowances, own
        )
        self._collector = Collector(log, self._at_rest, self._one_submission, clock=clock, logger=logger)
        if guard is not None:
            guard.folders, guard.collect = self._folders, lambda: self.collect(every=True)
        self.runs = self._make_runs(slots)
        self._sweeping = self._make_sweep_driver(slots)

    def _make_runs(self, slots: int) -> Runs:
        """Builds the set of running experiments, with at most `slots` at once if this daemon decides."""
        run_slots = slots if self._decides else HOSTED  # else the deciding daemon limits the number of runs
        note = self._record_pause if self._decides else None
        lost = self._loss_check.meet
        return Runs(self._make_run, slots=run_slots, clock=self._clock, logger=self._logger, note=note, lost=lost)

    def _make_sweep_driver(self, slots: int) -> SweepDriver:
        """Builds the driver of sweeps; `slots` is their default concurrency."""
        return SweepDriver(
            self._log,
            self._registry,
            self._orders,
            self._submissions,
            self._writer,
            self._refresh,
            self,
            self.runs.look,
            self._one_submission,
            slots=slots,
            clock=self._clock,
            logger=self._logger,
        )

    async def drive(self) -> None:
        """Starts experiments from the queue until cancelled; running workers are then left for the next daemon to
        adopt.
        """
        async with self._one_submission:
            await self._refresh()
            # Before any run begins: a crash's leftovers of a removed experiment lie in the next one's folder of this
            # name.
            await self._tidy()
        await self.runs.drive(self._startable)

    async def _tidy(self) -> None:
        """Completes interrupted archiving and removals, if this daemon decides."""
        if self._decides:
            await self._archiver.finish()

    async def _startable(self) -> Sequence[Entry]:
        """Returns the experiments to run here, in starting order, without those stopped by losses."""
        await self._refresh()
        if self._decides:
            return self._loss_check.free(self._registry.line())
        return self._loss_check.free(
            experiment for experiment in self._registry.under_way() if EXPLORE in experiment.spine.halves
        )

    async def collect(self, *, every: bool = False) -> None:
        """Deletes unreferenced files of ended experiments; unless `every`, only in folders with an interrupted
        clean-up.
        """
        await self._refresh()
        if self._decides:
            await self._collector.collect(every=every)
            await self._collect_tables()

    async def _collect_tables(self) -> None:
        """Deletes kept table files used by no experiment, unless the events naming them may be lost."""
        experiments = list(self._registry.entries.values())
        # The events naming a file may be the lost ones.
        if any(self._loss_check.lost_files_error(experiment) for experiment in experiments):
            return
        for unused in await asyncio.to_thread(
            self._submissions.tables.unused, experiments, now_ns=self._clock.now_ns()
        ):
            self._logger.info("garbage.removed", path=unused.path, size_bytes=unused.size_bytes, reason=unused.why)
            await asyncio.to_thread(remove, [unused.path])

    async def make_sweeps(self) -> None:
        """Submits and ends the runs of sweeps until cancelled."""
        if self._decides:
            await self._sweeping.run()

    async def keep_payloads(self) -> None:
        """Drops payloads of experiences no longer needed, periodically, until cancelled."""
        if self._decides:
            await self._payloads.run(self._refresh)

    async def look_at_payloads(self) -> None:
        """Drops every payload due at this moment under the keeping rules, once."""
        await self._payloads.look(self._refresh)

    async def archive_by_rule(self) -> None:
        """Archives experiments some time after their end, until cancelled; returns at once without
        `--archive-after`.
        """
        if self._decides and self._keeping.archive_after_s is not None:
            await self._make_archiving(self._keeping.archive_after_s).run(self._refresh)

    def _entries(self) -> Mapping[UUID, Entry]:
        """Returns every experiment of the registry by id."""
        return self._registry.entries

    def _make_archiving(self, after_s: float) -> Archiving:
        """Builds the automatic archiving of experiments `after_s` seconds after their end."""
        return Archiving(
            self._entries,
            self._archive_by_rule,
            after_s=after_s,
            clock=self._clock,
            logger=self._logger,
        )

    async def _archive_by_rule(self, entry: Entry) -> None:
        """Archives an experiment's files in the name of the rule, once per end."""
        request_id = derive(entry.id, "archive by rule", entry.spine.status_ns)
        order = order_of(request_id, "archive", entry.id, "")
        await self._keep(
            order, lambda entry, id: self._archiver.archive(entry, "", id, key=request_id, by=ARCHIVE_RULE_AUTHOR)
        )

    def _state_of(self, experiment: UUID) -> RunState | None:
        """Returns the folded state of an experiment decided on here; None for others."""
        run = self.runs.of(experiment)
        return run.state if isinstance(run, Run) else None

    def _at_rest(self) -> dict[UUID, Entry]:
        """Returns the experiments whose folders may be cleaned: not running here, and without lost events.

        A run cleans its own folder at its end; the lost events may be the ones naming the files.
        """
        experiments = self._registry.entries
        return {
            id: experiment
            for id, experiment in experiments.items()
            if id not in self.runs and not self._loss_check.lost_files_error(experiment)
        }

    def _folders(self) -> list[Path]:
        """Returns the folders with files of experiments on this machine."""
        experiments = self._registry.entries.values()
        jobs = [Path(experiment.job_dir) for experiment in experiments if experiment.spine.kept is Kept.HERE]
        return [*jobs, *self._submissions.tables.folders(experiments)]

    async def _record_pause(self, entry: Entry, error: BaseException) -> None:
        """Records a pause of an experiment whose run ended with an error; the next run ends the pause by itself."""
        await self._refresh()
        if entry.status is not Status.RUNNING:
            return
        await self._log.append(paused_for(error, entry.id, self._registry.fences, self._writer, self._owner))
        await self._refresh()

    def _make_run(self, entry: Entry) -> UnderWay:
        """Builds the run of an experiment: deciding here, or with workers only."""
        shared_args = {**self._run_args, "spine_offset": entry.spine_offset, "allowances": self._allowances}
        if not self._decides:
            return Hosting(self._log, entry.id, self._executor, **shared_args)
        return Run(
            self._log,
            entry.id,
            self._executor,
            **shared_args,
            release_after_s=self._release_after_s,
            **self._deciding_args,
            survivors=Survivors(self._loss_check, entry, self._executor, self._clock),
        )

    async def take_over(self, names: Sequence[str]) -> None:
        """Makes this log the owner of experiments' folders. Raises NotFoundError, UsageError."""
        await self._loss_check.take_over(names)

    async def accept_losses(self, names: Sequence[str], *, by: str) -> None:
        """Records an operator's acceptance (`by`) of lost records, so that experiments continue. Raises NotFoundError,
        UsageError.
        """
        await self._refresh()
        await self._loss_check.accept(names, self._writer, by=by)
