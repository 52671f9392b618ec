"""`Submissions`: experiments that are submitted or forked, each once for its key."""

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
from rftd.daemon.run.supervisor.forking import moved
from rftd.daemon.run.supervisor.hub_cache import HubCache, with_snapshots
from rftd.daemon.run.supervisor.intake import Intake, WantedFork
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.run.supervisor.orders import Orders, order_of
from rftd.daemon.run.supervisor.preflight import preflight, with_files
from rftd.daemon.run.supervisor.relocation import imported_from, relocated
from rftd.daemon.run.supervisor.sql_tables import SqlTables, names_tables
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
    """Submissions and forks as orders. The registry tells what took effect, the same to whoever asks again."""

    def __init__(
        self,
        intake: Intake,
        registry: Registry,
        orders: Orders,
        refresh: Callable[[], Awaitable[None]],
        folders: asyncio.Lock,
        host: Callable[[], Host],
        allowances: Allowances,
        own: LogIdentity | None,
    ) -> None:
        """`folders` is held by whoever takes or frees a job's folder; `refresh` brings the registry up to date.

        `host` says what workers are given; it may block. `allowances` hold for everybody but the owner;
        `own` is the log.
        """
        self._allowances = allowances
        self.tables: Final = KeptTables(own)
        """The files of the tables that submissions name."""
        self._host = host
        self._intake = intake
        self._registry = registry
        self._orders = orders
        self._refresh = refresh
        self._folders = folders

    async def submit(self, config: dict[str, Any], key: UUID, *, asker: Asker, base: UUID | None = None) -> Accepted:
        """See `Operations.submit`; an experiment that is new is a fork of `base` at step 0, if it can be."""
        made: dict[UUID, Accepted] = {}

        async def write(id: UUID) -> Position:
            # Before the lock: digesting a dataset may take minutes, and nobody else's submission, archive or removal
            # should wait for that.
            judge = SubmissionJudge(asker, self._allowances)
            spec = await self._ready(config, judge, keeps=True)
            host = await asyncio.to_thread(self._host)
            async with self._folders:
                await self._refresh()
                self._check_quota(asker)
                made[id] = await self._intake.submit(spec, host, judge, key=key, id=id, base=base)
            faults.point("submission.after_append")
            return made[id].position

        use = await self._orders.carry_out(order_of(key, "submit", None, config), write, whole=self._whole)
        return made.get(use.event) or self._accepted(use)

    async def check(self, config: dict[str, Any], *, asker: Asker) -> ExperimentSpec:
        """See `Operations.check`."""
        judge = SubmissionJudge(asker, self._allowances)
        spec = await self._ready(config, judge)
        host = await asyncio.to_thread(self._host)
        async with self._folders:
            await self._refresh()
            return await self._intake.check(spec, host, judge)

    async def spec_of(self, config: dict[str, Any], *, asker: Asker) -> ExperimentSpec:
        """The checked specification of a file, whatever folders are in use. Raises as `check`."""
        return await self._ready(config, SubmissionJudge(asker, self._allowances))

    async def _ready(self, config: dict[str, Any], judge: SubmissionJudge, *, keeps: bool = False) -> ExperimentSpec:
        """The checked specification; a half of an experiment that is there has what it left out and both use.

        Whoever submits it `keeps` what tables of databases hold.
        """
        entries = list(self._registry.entries.values())  # in the thread they would change while it reads them
        if keeps:
            spec = await asyncio.to_thread(self._with_tables, config, judge, entries, None)
        else:
            spec = await asyncio.to_thread(self._looked_at, config, judge, entries)
        if spec.half == "both":
            return spec
        async with self._folders:
            await self._refresh()
            whole = self._intake.filled(spec)
        if whole == spec.config:
            return spec
        filled = await asyncio.to_thread(self._checked, whole, judge, entries)
        return filled if filled.job_dir == spec.job_dir else moved(filled, filled.name, spec.job_dir)

    def _looked_at(self, config: dict[str, Any], judge: SubmissionJudge, entries: Sequence[Entry]) -> ExperimentSpec:
        """As `_checked`, with tables of databases read into a folder that is gone again. Blocks."""
        if not names_tables(config):
            return self._checked(config, judge, entries)
        # Below the root, where everybody who may submit to it may name a file.
        root = SqlTables(os.environ, judge, self.tables).root(config)
        with tempfile.TemporaryDirectory(dir=nearest(root)) as folder:
            return self._with_tables(config, judge, entries, Path(folder))

    def _with_tables(
        self, config: dict[str, Any], judge: SubmissionJudge, entries: Sequence[Entry], folder: Path | None
    ) -> ExperimentSpec:
        """As `_checked`, with tables of databases read into `folder`, or into one below the checkpoint root. Blocks."""
        tables = SqlTables(os.environ, judge, self.tables)
        spec = self._checked(tables.read(config, folder), judge, entries)
        return msgspec.structs.replace(spec, warnings=(*spec.warnings, *tables.notes))

    def _checked(self, config: dict[str, Any], judge: SubmissionJudge, entries: Sequence[Entry]) -> ExperimentSpec:
        """The specification as it could be taken in. Raises ConfigError, DataError, NotAllowedError. Blocks."""
        from rftd.daemon.config.issue import ConfigErrors
        from rftd.daemon.config.loading import check_config

        host = self._host()
        # Before the judge: others may name what is in the cache only if the cache is among the roots.
        config = with_snapshots(config, HubCache.of(os.environ))
        file_judge = None if judge.asker.is_owner else judge.file
        try:
            spec = check_config(config, host=host, judge=file_judge)
            imported = imported_from(spec, entries)
            if imported is not None:
                moved_config = relocated(spec, imported.spine).config
                spec = _beside(imported, spec, check_config(moved_config, host=host, judge=file_judge))
        except ConfigErrors as errors:
            # The files that a wrong submission names were not judged: only the owner is told of them.
            raise with_files(errors) if judge.asker.is_owner else errors from None
        judge.spec(spec)
        checked = preflight(msgspec.structs.replace(spec, reach=judge.reach), host)
        if host.seen and not host.clustered:
            _check_folder(Path(spec.job_dir))
        return checked

    async def fork(self, wanted: WantedFork, key: UUID, *, asker: Asker) -> Forked:
        """See `Operations.fork`."""

        async def write(id: UUID) -> Position:
            host = await asyncio.to_thread(self._host)
            judge = SubmissionJudge(asker, self._allowances)
            async with self._folders:
                await self._refresh()
                self._check_quota(asker)
                return await self._intake.fork(wanted, host, judge, key=key, id=id)

        use = await self._orders.carry_out(order_of(key, "fork", None, wanted), write, whole=self._whole)
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

    def _check_quota(self, asker: Asker) -> None:
        """Raises QuotaError if so many of the asker's experiments wait that no other may."""
        most = asker.quota.queued
        entries = self._registry.entries.values()
        own = sum(1 for entry in entries if entry.status is Status.QUEUED and entry.spine.submitted_by == asker.name)
        if most is not None and own >= most:
            raise QuotaError(f"{asker.name!r} has {own} of {most} experiments in the queue", fix="cancel one, or wait")

    def _whole(self, use: KeyUse) -> bool:
        """True if the experiment is accepted as well as submitted; one of two halves is always looked at again."""
        entry = self._registry.entries.get(use.experiment) if use.experiment is not None else None
        return entry is not None and entry.status is not Status.SUBMITTED and entry.spec.half == "both"

    def _accepted(self, use: KeyUse) -> Accepted:
        assert use.experiment is not None
        entry = self._registry.entries[use.experiment]
        return Accepted(
            experiment=entry.id,
            name=entry.name,
            event=use.event,
            position=use.position,
            warnings=entry.spec.warnings,
        )


def _beside(imported: Entry, spec: ExperimentSpec, own: ExperimentSpec) -> ExperimentSpec:
    """The relocated specification `own` of a submitted `spec`, in the folder of the imported experiment."""
    own = moved(own, own.name, imported.job_dir)
    warning = (
        f"the import of {imported.name} moved {spec.job_dir} to {imported.job_dir}: the paths of this file move along"
    )
    return msgspec.structs.replace(own, warnings=(*own.warnings, warning))


def _check_folder(job: Path) -> None:
    """Raises ConfigError unless the folder of an experiment is there or can be made, and can be written. Blocks."""
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
