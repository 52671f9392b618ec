"""`Submissions`: executes submissions and forks of experiments, each once per request key."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from rftd.daemon.run.operations import Accepted, Forked
from rftd.daemon.run.registry import Entry, Registry
from rftd.daemon.run.supervisor.agent_folders import AgentFolders, names_agent_folders
from rftd.daemon.run.supervisor.environment_tasks import EnvironmentTasks, names_environments
from rftd.daemon.run.supervisor.forking import moved
from rftd.daemon.run.supervisor.hub_cache import HubCache, with_snapshots
from rftd.daemon.run.supervisor.intake import Intake, WantedFork
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.run.supervisor.orders import Orders, order_of
from rftd.daemon.run.supervisor.preflight import preflight, with_files
from rftd.daemon.run.supervisor.relocation import imported_from, relocated
from rftd.daemon.run.supervisor.sql_tables import SqlTables, names_tables
from rftd.daemon.run.supervisor.task_pipelines import TaskPipelines, names_task_pipelines
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.asker import Asker
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.daemon.trust.quota import QuotaError
from rftd.ops import faults
from rftd.ops.errors import ConfigError
from rftd.storage.files.disk import nearest
from rftd.storage.files.folder_owner import LogIdentity
from rftd.streams.folds.key_use import KeyUse
from rftd.streams.folds.spine import Status
from rftd.streams.log.envelope import Position
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.host import Host


class Submissions:
    """Executes submissions and forks as orders; receipts come from the registry, so a repeated request gets an equal
    one.
    """

    def __init__(
        self,
        intake: Intake,
        registry: Registry,
        orders: Orders,
        refresh: Callable[[], Awaitable[None]],
        folders: asyncio.Lock,
        host: Callable[[], Host],
        allowances: Allowances,
        identity: LogIdentity | None,
    ) -> None:
        """`folders` is locked while a job's folder is claimed or freed; `refresh` brings the registry up to date.

        `host` describes the machine of the workers, and may block. `allowances` are the allow-lists for askers other
        than the owner; `identity` is the log's.
        """
        self._allowances = allowances
        self.tables: Final = KeptTables(identity)
        """Files with copies of database tables named by submissions."""
        self._host = host
        self._intake = intake
        self._registry = registry
        self._orders = orders
        self._refresh = refresh
        self._folders = folders

    async def submit(self, config: dict[str, Any], key: UUID, *, asker: Asker, base: UUID | None = None) -> Accepted:
        """Submits an experiment: validates the configuration, inspects model and datasets, and appends the event. See
        `Operations.submit`. A new experiment is a fork of `base` at step 0, if possible.
        """
        accepted_by_event: dict[UUID, Accepted] = {}

        async def write(id: UUID) -> Position:
            # Before the lock: digesting a dataset may take minutes, and other submissions, archives or removals should
            # not wait.
            judge = SubmissionJudge(asker, self._allowances)
            spec = await self._checked_spec(config, judge, keeps=True)
            host = await asyncio.to_thread(self._host)
            async with self._folders:
                await self._refresh()
                self._check_quota(asker)
                accepted_by_event[id] = await self._intake.submit(spec, host, judge, key=key, id=id, base=base)
            faults.point("submission.after_append")
            return accepted_by_event[id].position

        use = await self._orders.carry_out(order_of(key, "submit", None, config), write, whole=self._is_complete)
        return accepted_by_event.get(use.event) or self._accepted(use)

    async def check(self, config: dict[str, Any], *, asker: Asker) -> ExperimentSpec:
        """Returns the specification that `submit` would append, after the checks of `submit`; appends nothing. See
        `Operations.check`.
        """
        judge = SubmissionJudge(asker, self._allowances)
        spec = await self._checked_spec(config, judge)
        host = await asyncio.to_thread(self._host)
        async with self._folders:
            await self._refresh()
            return await self._intake.check(spec, host, judge)

    async def spec_of(self, config: dict[str, Any], *, asker: Asker) -> ExperimentSpec:
        """Returns the checked specification of a configuration, without checking whether its folder is in use. Raises
        as `check`.
        """
        return await self._checked_spec(config, SubmissionJudge(asker, self._allowances))

    async def _checked_spec(
        self, config: dict[str, Any], judge: SubmissionJudge, *, keeps: bool = False
    ) -> ExperimentSpec:
        """Returns the checked specification; a half receives its unset shared fields from the half already submitted.

        With `keeps`, the contents of database tables are kept as files, and folders of programs as copies.
        """
        experiments = list(self._registry.entries.values())  # in the thread the mapping would change while being read
        if keeps:
            spec = await asyncio.to_thread(self._with_kept_files, config, judge, experiments)
        else:
            spec = await asyncio.to_thread(self._checked_with_temporary_tables, config, judge, experiments)
        if spec.half == "both":
            return spec
        async with self._folders:
            await self._refresh()
            whole = self._intake.filled(spec)
        if whole == spec.config:
            return spec
        filled = await asyncio.to_thread(self._checked, whole, judge, experiments)
        return filled if filled.job_dir == spec.job_dir else moved(filled, filled.name, spec.job_dir)

    def _checked_with_temporary_tables(
        self, config: dict[str, Any], judge: SubmissionJudge, experiments: Sequence[Entry]
    ) -> ExperimentSpec:
        """Returns the specification as `_checked` does, with tables, environments and task pipelines read into a
        temporary folder. Blocks.
        """
        if not names_tables(config) and not names_environments(config) and not names_task_pipelines(config):
            return self._checked(config, judge, experiments)
        # Below the root, where every submitter allowed to use it may name a file.
        root = SqlTables(os.environ, judge, self.tables).root(config)
        with tempfile.TemporaryDirectory(dir=nearest(root)) as folder:
            return self._with_tables(config, judge, experiments, Path(folder))

    def _with_kept_files(
        self, config: dict[str, Any], judge: SubmissionJudge, experiments: Sequence[Entry]
    ) -> ExperimentSpec:
        """Returns the specification as `_checked` does, with database tables and programs' folders copied as they are
        now. Blocks.
        """
        if not names_agent_folders(config):
            return self._with_tables(config, judge, experiments, None)
        folders = AgentFolders(judge, self.tables)
        spec = self._with_tables(folders.read(config), judge, experiments, None)
        return msgspec.structs.replace(spec, warnings=(*spec.warnings, *folders.notes))

    def _with_tables(
        self, config: dict[str, Any], judge: SubmissionJudge, experiments: Sequence[Entry], folder: Path | None
    ) -> ExperimentSpec:
        """Returns the specification as `_checked` does, with database tables, environments and task pipelines read into
        `folder`, or below the checkpoint root if it is None. Blocks.
        """
        tables = SqlTables(os.environ, judge, self.tables)
        environments = EnvironmentTasks(judge, self.tables)
        config = tables.read(config, folder)
        if names_environments(config):
            config = environments.read(config, tables.root(config), folder)
        pipelines = TaskPipelines(judge, self.tables)
        if names_task_pipelines(config):
            config = pipelines.read(config, tables.root(config), self._host(), folder)
        spec = self._checked(config, judge, experiments)
        notes = (*tables.notes, *environments.notes, *pipelines.notes)
        return msgspec.structs.replace(spec, warnings=(*spec.warnings, *notes))

    def _checked(self, config: dict[str, Any], judge: SubmissionJudge, experiments: Sequence[Entry]) -> ExperimentSpec:
        """Returns the specification, ready for acceptance. Raises ConfigError, DataError, NotAllowedError. Blocks."""
        from rftd.daemon.config.issue import ConfigErrors
        from rftd.daemon.config.loading import check_config

        host = self._host()
        # Before the judge: everybody but the owner may name cached models only if the cache is among the roots.
        config = with_snapshots(config, HubCache.of(os.environ))
        file_judge = None if judge.asker.is_owner else judge.file
        try:
            spec = check_config(config, host=host, judge=file_judge)
            imported = imported_from(spec, experiments)
            if imported is not None:
                moved_config = relocated(spec, imported.spine).config
                spec = _relocated_beside(imported, spec, check_config(moved_config, host=host, judge=file_judge))
        except ConfigErrors as errors:
            # The files named by a wrong submission were not judged: only the owner is told about them.
            raise with_files(errors) if judge.asker.is_owner else errors from None
        judge.spec(spec)
        checked = preflight(msgspec.structs.replace(spec, reach=judge.reach), host)
        if host.seen and not host.clustered:
            _check_folder(Path(spec.job_dir))
        return checked

    async def fork(self, request: WantedFork, key: UUID, *, asker: Asker) -> Forked:
        """Submits an experiment continuing from weight version `at_step` of another one, with changes. See
        `Operations.fork`.
        """

        async def write(id: UUID) -> Position:
            host = await asyncio.to_thread(self._host)
            judge = SubmissionJudge(asker, self._allowances)
            async with self._folders:
                await self._refresh()
                self._check_quota(asker)
                return await self._intake.fork(request, host, judge, key=key, id=id)

        use = await self._orders.carry_out(order_of(key, "fork", None, request), write, whole=self._is_complete)
        accepted = self._accepted(use)
        forked = self._registry.entries[accepted.experiment].spine.forked
        assert forked is not None
        return Forked(
            experiment=accepted.experiment,
            name=accepted.name,
            event=accepted.event,
            position=self._registry.commands.of(key)[-1].position,
            warnings=accepted.warnings,
            parent=forked.parent,
            at_step=forked.at_step,
        )

    async def check_fork(self, request: WantedFork, *, asker: Asker) -> ExperimentSpec:
        """Returns the specification that `fork` would append, after the checks of `fork`; appends nothing."""
        host = await asyncio.to_thread(self._host)
        judge = SubmissionJudge(asker, self._allowances)
        async with self._folders:
            await self._refresh()
            self._check_quota(asker)
            return await self._intake.check_fork(request, host, judge)

    def _check_quota(self, asker: Asker) -> None:
        """Raises QuotaError if the asker's quota of queued experiments is used up."""
        most = asker.quota.queued
        experiments = self._registry.entries.values()
        queued = sum(
            1
            for experiment in experiments
            if experiment.status is Status.QUEUED and experiment.spine.submitted_by == asker.name
        )
        if most is not None and queued >= most:
            raise QuotaError(
                f"{asker.name!r} has {queued} of {most} experiments in the queue", fix="cancel one, or wait"
            )

    def _is_complete(self, use: KeyUse) -> bool:
        """True if the recorded submission was followed by its acceptance; submissions of halves are always checked
        again.
        """
        entry = self._registry.entries.get(use.experiment) if use.experiment is not None else None
        return entry is not None and entry.status is not Status.SUBMITTED and entry.spec.half == "both"

    def _accepted(self, use: KeyUse) -> Accepted:
        """Returns the receipt of a recorded submission."""
        assert use.experiment is not None
        entry = self._registry.entries[use.experiment]
        return Accepted(
            experiment=entry.id,
            name=entry.name,
            event=use.event,
            position=use.position,
            warnings=entry.spec.warnings,
        )


def _relocated_beside(imported: Entry, spec: ExperimentSpec, moved_spec: ExperimentSpec) -> ExperimentSpec:
    """Returns `moved_spec`, the relocated form of a submitted `spec`, in the folder of the imported experiment."""
    moved_spec = moved(moved_spec, moved_spec.name, imported.job_dir)
    warning = (
        f"the import of {imported.name} moved {spec.job_dir} to {imported.job_dir}: the paths of this file move along"
    )
    return msgspec.structs.replace(moved_spec, warnings=(*moved_spec.warnings, warning))


def _check_folder(job: Path) -> None:
    """Raises ConfigError unless the experiment's folder exists or can be created, and is writable. Blocks."""
    home = nearest(job)
    try:
        with tempfile.TemporaryDirectory(dir=home, prefix=".rftd-check-"):
            return
    except OSError as error:
        raise ConfigError(
            f"the experiment's folder {job} cannot be written: {home}: {error.strerror}",
            field="checkpoint_root_dir",
            fix="give a folder that the daemon's user may write",
        ) from None
