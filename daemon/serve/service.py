"""One daemon, composed: log, log server, projections, supervisor, HTTP. All parts are wired here, in this order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from rftd.daemon.cli.service_options import ServiceOptions
from rftd.daemon.http.api.app import make_app
from rftd.daemon.http.api.probes import Gate
from rftd.daemon.observe.doctor.abilities import Abilities
from rftd.daemon.observe.metrics_feed import MetricsFeed
from rftd.daemon.observe.metrics_follower import follow_metrics
from rftd.daemon.run.dlq.dead_letter_service import watch_dead_letters
from rftd.daemon.run.requests.request_service import RequestService
from rftd.daemon.run.supervisor.disk_guard import DiskGuard
from rftd.daemon.run.supervisor.folder_claims import FolderClaims
from rftd.daemon.run.supervisor.loss_check import LossCheck
from rftd.daemon.run.supervisor.recomputing import Recomputations
from rftd.daemon.run.supervisor.supervisor import Supervisor
from rftd.daemon.run.supervisor.trackers import Trackers
from rftd.daemon.serve import report_pages
from rftd.daemon.serve.alert import AlertsFile
from rftd.daemon.serve.alerts import Alerts
from rftd.daemon.serve.claim import Claim
from rftd.daemon.serve.data_folder import DataFolder
from rftd.daemon.serve.entrance import Entrance, check_reach
from rftd.daemon.serve.folder_log import keep_for, of_another_log
from rftd.daemon.serve.launching import environment_of, launchers_of
from rftd.daemon.serve.log_identity import identity_of
from rftd.daemon.serve.log_source import OwnedLog, identity_at, owned_log
from rftd.daemon.serve.reconnecting import Troubles, opened_in_time, persistently
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.keyring import Keyring
from rftd.ops.clock import Clock
from rftd.ops.commit import commit_of
from rftd.ops.cycles import keep_trimmed
from rftd.ops.errors import NotFoundError, RftdError, UsageError
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.ops.metrics import Metrics
from rftd.ops.releases import release_of
from rftd.ops.tracing.tracer import Tracer
from rftd.storage.database.connection_pool import close_idle_connections
from rftd.storage.database.engine import open_database
from rftd.storage.files.disk import LocalDisk
from rftd.storage.files.folder_owner import LogIdentity
from rftd.storage.files.survivors import LossesFile, of_log_folder, of_registry, of_tables
from rftd.storage.projector.projections.workers import PROJECTOR
from rftd.storage.projector.projector import Projector
from rftd.streams.log.codec import Writer
from rftd.streams.log.deadletters import DeadLetterBox
from rftd.streams.log.log import EventLog
from rftd.streams.log.lost_records import Witness
from rftd.streams.log.retention import enforce_retention
from rftd.streams.sqlite.lock_file import LockFile
from rftd.workers.hosts.environment import WorkerEnvironment

T = TypeVar("T")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A running daemon, with the parts needed by callers and tests."""

    url: str
    folder: DataFolder
    supervisor: Supervisor
    projector: Projector
    keyring: Keyring | None
    """Valid tokens and their owners; None if requests need no token."""


_Work: TypeAlias = "dict[str, Callable[[], Awaitable[None]]]"
"""Background tasks of a daemon, by the names used in `Troubles`."""


@asynccontextmanager
async def running(
    options: ServiceOptions,
    *,
    clock: Clock,
    ids: Ids,
    logger: Logger,
    tracer: Tracer | None = None,
    claim: Claim | None = None,
) -> AsyncIterator[Service]:
    """A context running a daemon; leaving it drains the workers and closes everything, in reverse order.

    The daemon listens, and publishes its address, as soon as it owns the folder. `tracer` makes the daemon's spans;
    `claim` is a caller's existing claim of folder and port, released at the end. An unreachable log or database
    elsewhere is waited for: meanwhile the daemon is live and not ready. Raises ConflictError if another daemon holds
    folder or port, and LogError if the embedded log refuses to open.
    """
    check_reach(options.host, options.door)
    folder = DataFolder(options.data)
    async with AsyncExitStack() as stack:
        claim = await _claimed(folder, options, claim, stack, logger)
        door = await asyncio.to_thread(partial(Entrance, folder, options.door, clock=clock, logger=logger))
        front = await stack.enter_async_context(AsyncExitStack())
        if options.log_at is not None:
            await door.answer(front, claim.bound)
        parts = _Parts(options, folder, door.gate, stack, clock=clock, ids=ids, logger=logger)
        owned = await parts.log(claim.lock)
        if options.log_at is None:
            # Not before the log is open, which may refuse: no address is published for a daemon that never runs.
            await door.answer(front, claim.bound)
        loss_check = await parts.loss_check(owned)
        feed = MetricsFeed(Metrics(version=release_of("rftd"), commit=commit_of("rftd")))
        engine, projector = await parts.state(owned.log, loss_check, feed.metrics)
        troubles = Troubles(clock)
        guard = DiskGuard(LocalDisk(), folder.root, options.disk, clock=clock, logger=logger, metrics=feed.metrics)
        supervisor = _supervisor(options, owned, folder, guard, loss_check, tracer, clock=clock, ids=ids, logger=logger)
        # Before the gate opens: an accepted command appends, and would hide lost records.
        await parts.heard(supervisor)
        terms = parts.recomputations(owned, supervisor)
        alerts = _alerts(options, folder, engine, supervisor, guard, clock=clock, logger=logger)
        app = make_app(
            operations=supervisor,
            log=owned.log,
            engine=engine,
            projector=projector,
            feed=feed,
            clock=clock,
            ids=ids,
            doorkeeper=door.keeper,
            guard=guard,
            troubles=troubles,
            tracer=tracer,
            recomputations=terms,
            **_app_options(options, folder, alerts),
        )
        door.gate.open(app)
        # Entered after log, database and projector, to be left before them: no task outlives the parts it uses.
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        work = _reports(owned.log, supervisor, engine, projector, feed, door, clock)
        work |= parts.deciding(owned, supervisor, feed.metrics, tracer, terms) | {"alerts": alerts.run}
        work |= _upkeep(owned.log, supervisor, guard, clock)
        patient = partial(persistently, clock=clock, logger=logger, troubles=troubles)
        background = [tasks.create_task(patient(do, name)) for name, do in work.items()]
        try:
            yield Service(folder=folder, supervisor=supervisor, projector=projector, url=door.url, keyring=door.keyring)
            # Inside the block, with projector and API still running: leaving workers are folded and shown.
            await supervisor.runs.drain()
        finally:
            for task in background:
                task.cancel()
            await front.aclose()  # before the parts used by requests are closed, although entered before them


def _app_options(options: ServiceOptions, folder: DataFolder, alerts: Alerts) -> dict[str, Any]:
    """Returns the arguments of `make_app` that follow from options, folder and alerts."""
    return {
        "prices": options.prices,
        "daemon_log": folder.daemon_log,
        "words": folder.words,
        "environment": WorkerEnvironment(pass_env=options.launching.pass_env),
        "further": (report_pages.router,),
        "alerts": alerts.listed,
        "abilities": Abilities(),
    }


async def _claimed(
    folder: DataFolder, options: ServiceOptions, claim: Claim | None, stack: AsyncExitStack, logger: Logger
) -> Claim:
    """Returns the caller's claim, or a new one; released with the stack."""
    embedded = options.log_at is None
    if claim is None:
        claim = await asyncio.to_thread(partial(Claim, folder, options.host, options.port, embedded=embedded))
    stack.push_async_callback(asyncio.to_thread, claim.release)
    for line, faulty in await asyncio.to_thread(lambda: list(options.allowances.faults())):
        logger.warning("allowances.no_folder", line=line, where=faulty, fix="make it, or give its path without links")
    if not embedded:
        await asyncio.to_thread(keep_for, folder, embedded=False)
    return claim


def _supervisor(
    options: ServiceOptions,
    owned: OwnedLog,
    folder: DataFolder,
    guard: DiskGuard,
    loss_check: LossCheck,
    tracer: Tracer | None,
    *,
    clock: Clock,
    ids: Ids,
    logger: Logger,
) -> Supervisor:
    return Supervisor(
        owned.log,
        launchers_of(
            options.launching,
            owned.worker_url,
            folder,
            ids=ids,
            logger=logger,
            traces=options.traces,
            folders=options.folders,
        ),
        slots=options.slots,
        keeping=options.keeping,
        owner=ids.new(),
        clock=clock,
        ids=ids,
        logger=logger,
        archives=folder.archives,
        snapshots=folder.known,
        lost_after_s=options.worker_lost_after_s,
        release_after_s=options.release_after_s,
        roles=options.launching.roles,
        guard=guard,
        loss_check=loss_check,
        tracer=tracer,
        allowances=_with_files(options.allowances, folder),
    )


def _with_files(allowances: Allowances, folder: DataFolder) -> Allowances:
    """Returns the allow-lists; without configured roots, the data folder's own files are the root."""
    return allowances if allowances.roots else msgspec.structs.replace(allowances, roots=(str(folder.files),))


def _reports(
    log: EventLog,
    supervisor: Supervisor,
    engine: AsyncEngine,
    projector: Projector,
    feed: MetricsFeed,
    door: Entrance,
    clock: Clock,
) -> _Work:
    """Returns the tasks maintaining tables, connections, metrics, dead letters and the certificate."""
    return {
        "projector": projector.run,
        "certificate": door.watch_certificate,
        "metrics": lambda: follow_metrics(log, feed, supervisor.known),
        "connections": lambda: close_idle_connections(engine, clock),
        "dead letters": lambda: watch_dead_letters(supervisor, engine, projector, feed.metrics, clock),
    }


def _alerts(
    options: ServiceOptions,
    folder: DataFolder,
    engine: AsyncEngine,
    supervisor: Supervisor,
    guard: DiskGuard,
    *,
    clock: Clock,
    logger: Logger,
) -> Alerts:
    return Alerts(
        options.alerts.urls,
        engine,
        supervisor,
        guard,
        clock=clock,
        logger=logger,
        file=AlertsFile(folder.alerts),
        stalled_after_s=options.alerts.stalled_after_s,
    )


def _upkeep(log: EventLog, supervisor: Supervisor, guard: DiskGuard, clock: Clock) -> _Work:
    """Returns the tasks of experiments, and of disk space and memory."""
    return {
        "supervisor": supervisor.drive,
        "garbage": supervisor.collect,
        "payloads": supervisor.keep_payloads,
        "archives": supervisor.archive_by_rule,
        "sweeps": supervisor.make_sweeps,
        "disk": guard.run,
        "retention": lambda: enforce_retention(log, clock),
        "memory": lambda: keep_trimmed(clock),
    }


class _Parts:
    """Opens the daemon's log and database: at once, or, on servers, when they become reachable."""

    def __init__(
        self,
        options: ServiceOptions,
        folder: DataFolder,
        gate: Gate,
        stack: AsyncExitStack,
        *,
        clock: Clock,
        ids: Ids,
        logger: Logger,
    ) -> None:
        self._options = options
        self._folder = folder
        self._gate = gate
        self._stack = stack
        self._clock = clock
        self._ids = ids
        self._logger = logger
        self._last = ""
        self._remembered: list[Witness] = []
        """Heads read from the log's own file before the log was opened."""
        self._identity: LogIdentity | None = None

    async def log(self, lock: LockFile) -> OwnedLog:
        """Opens the log under the folder's lock; closed with the stack."""

        async def enter() -> OwnedLog:
            self._remembered = await asyncio.to_thread(self._remember)
            log_url = self._options.log_at
            if log_url is None:
                self._identity = await asyncio.to_thread(identity_of, self._folder, self._ids)
            else:
                self._identity = await identity_at(log_url)
            source = owned_log(self._folder, log_url, clock=self._clock, ids=self._ids, refuse_loss=False, lock=lock)
            owned = await self._stack.enter_async_context(source)
            if log_url is None:
                await asyncio.to_thread(keep_for, self._folder, embedded=True)
            return owned

        return await self._opened("log", enter, wait=self._options.log_at is not None)

    def _remember(self) -> list[Witness]:
        # The file beside the embedded log describes only that log, possibly used with the folder earlier.
        embedded = self._options.log_at is None
        heads = of_log_folder(self._folder.log) if embedded else []
        return heads if of_another_log(self._folder, embedded=embedded) else [*heads, *of_registry(self._folder.known)]

    async def loss_check(self, owned: OwnedLog) -> LossCheck:
        """Returns the loss check of all stored heads, with the log's own file first."""
        claims = FolderClaims(self._identity, logger=self._logger)
        losses = LossesFile(self._folder.losses)
        loss_check = LossCheck(owned.log, losses, logger=self._logger, door=owned.door, claims=claims)
        await loss_check.note(self._remembered)
        return loss_check

    async def state(self, log: EventLog, loss_check: LossCheck, metrics: Metrics) -> tuple[AsyncEngine, Projector]:
        """Opens the database of the projections, and the projector; rebuilt if the rows belong to a lost log."""
        engine = open_database(self._options.state_url or self._folder.state_url)
        # Registered before the database is reached: an opening that fails half way leaves connections, too.
        self._stack.push_async_callback(engine.dispose)
        letters = DeadLetterBox(log, Writer(source="daemon", clock=self._clock, ids=self._ids), clock=self._clock)
        handled = partial(metrics.handled, PROJECTOR)
        projector = Projector(log, engine, clock=self._clock, report=letters.report, handled=handled)
        self._stack.push_async_callback(projector.close)

        async def enter() -> None:
            # The tables contain records lost by the log: they match no existing log, and their heads are stored on disk
            # by now.
            if await loss_check.note(await of_tables(engine)):  # the tables' heads are stored by now
                await projector.reset()
            await projector.open()

        await self._opened("state", enter, wait=self._options.clustered)
        return engine, projector

    def deciding(
        self,
        owned: OwnedLog,
        supervisor: Supervisor,
        metrics: Metrics,
        tracer: Tracer | None,
        terms: Recomputations | None,
    ) -> _Work:
        """Returns the parts of a daemon making decisions: answers to other programs, trackers, and `terms`; none for
        other daemons, without `terms`.
        """
        launching = self._options.launching
        if terms is None:
            return {}
        writer = Writer(source="daemon", clock=self._clock, ids=self._ids)
        common: dict[str, Any] = {"clock": self._clock, "logger": self._logger}
        service = RequestService(
            owned.log, supervisor, supervisor.known, writer, metrics=metrics, tracer=tracer, **common
        )
        environment = environment_of(launching, owned.worker_url, traces=None)
        trackers = Trackers(
            supervisor.known,
            owned.worker_url,
            environment=environment,
            identity=self._identity,
            allowances=self._options.allowances,
            **common,
        )
        return {"requests": service.run, "trackers": trackers.run, "terms": terms.run}

    def recomputations(self, owned: OwnedLog, supervisor: Supervisor) -> Recomputations | None:
        """Returns the recomputations of terms by replays; None for a daemon without decisions."""
        launching = self._options.launching
        if not launching.decides:
            return None
        return Recomputations(
            self._folder.terms,
            owned.worker_url,
            environment=environment_of(launching, owned.worker_url, traces=None),
            busy=lambda: len(supervisor.runs) > 0,
            clock=self._clock,
            logger=self._logger,
        )

    async def heard(self, supervisor: Supervisor) -> None:
        """Runs the loss check of all remembered heads, and records losses accepted by a person.

        Raises NotFoundError and UsageError for an unknown experiment, because waiting would not help.
        """

        async def enter() -> RftdError | None:
            try:
                await supervisor.take_over(self._options.take_over)
                await supervisor.accept_losses(self._options.accept_loss, by=self._options.accepted_by)
            except (NotFoundError, UsageError) as error:
                return error
            return None

        if (wrong := await self._opened("log", enter, wait=self._options.log_at is not None)) is not None:
            raise wrong

    async def _opened(self, name: str, open: Callable[[], Awaitable[T]], *, wait: bool) -> T:
        if not wait:
            return await open()

        def on_error(error: RftdError) -> None:
            self._gate.wait_for(name, error)
            if error.what != self._last:
                self._last = error.what
                self._logger.warning("waiting", part=name, code=error.code, reason=error.what, fix=error.fix)

        return await opened_in_time(open, on_error=on_error, clock=self._clock, also=(DBAPIError,))
