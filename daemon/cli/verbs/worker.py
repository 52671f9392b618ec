"""`rftd worker explorer|trainer`: one worker process, started by the daemon or by you, on any machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rftd.daemon.cli.daemon_file import config_option
from rftd.daemon.cli.folders_option import begin_process, folders_option
from rftd.daemon.cli.log_option import worker_log_option
from rftd.daemon.cli.trace_option import trace_option
from rftd.ops import limits

if TYPE_CHECKING:
    from uuid import UUID

    from rftd.ops.own_folder import FolderAccess
    from rftd.ops.tracing.trace_options import TraceOptions
    from rftd.ops.tracing.tracer import Tracer
    from rftd.streams.log.backend import LogUrl

F = TypeVar("F", bound=Callable[..., Any])
"""Type of the decorated function."""


def _log_options(function: F) -> F:
    """Adds the options common to explorer and trainer."""
    for option in (
        click.option("--spine-offset", type=click.IntRange(0), default=0, hidden=True),
        click.option("--worker", type=click.UUID, hidden=True),
        folders_option,
        trace_option,
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error", "critical"]),
            default="info",
            show_default=True,
            help="Lowest level of its log lines. The daemon takes the experiment's log.level.",
        ),
        click.option("--experiment", help="Id of the experiment. Default: any running one."),
        worker_log_option,
        config_option,
    ):
        function = option(function)
    return function


@click.group("worker")
def command() -> None:
    """Run one worker process: of one experiment, or of any that is under way."""


@command.command()
@_log_options
@click.option(
    "--slot", type=click.IntRange(0, limits.WORKER_SLOTS - 1), help="Slot whose leases the worker takes. Default: any."
)
def explorer(
    log_at: LogUrl,
    experiment: str | None,
    spine_offset: int,
    worker: UUID | None,
    slot: int | None,
    folders: FolderAccess,
    traces: TraceOptions | None,
    log_level: str,
) -> None:
    """Run rollouts of leased tasks."""
    _prepare_process(folders, log_level)
    _run_worker("explorer", log_at, experiment, slot, spine_offset, worker, traces)


@command.command()
@_log_options
def trainer(
    log_at: LogUrl,
    experiment: str | None,
    spine_offset: int,
    worker: UUID | None,
    folders: FolderAccess,
    traces: TraceOptions | None,
    log_level: str,
) -> None:
    """Train planned batches. While another trainer is alive, this one stands by; then it takes over."""
    _prepare_process(folders, log_level)
    _run_worker("trainer", log_at, experiment, -1, spine_offset, worker, traces)


def _prepare_process(folders: FolderAccess, log_level: str) -> None:
    """Restricts new files, and configures logging."""
    from rftd.ops.logs import configure

    begin_process(folders)
    configure(level=log_level, libraries=True)


@command.command(hidden=True)
@click.option("--kind", required=True, help="Kind of the tracker, of those that the experiment has.")
@click.option("--experiment", type=click.UUID, required=True, help="Id of the experiment.")
@click.option("--spine-offset", type=click.IntRange(0), default=0)
@worker_log_option
@config_option
def tracker(log_at: LogUrl, kind: str, experiment: UUID, spine_offset: int) -> None:
    """Follow an experiment for one of its trackers. The daemon starts it."""
    import asyncio

    from rftd.ops.logs import configure
    from rftd.streams.log.backend import backend_of

    configure(libraries=True)
    asyncio.run(_run_tracker_process(backend_of(log_at).checked(log_at.text), experiment, kind, spine_offset))


async def _run_tracker_process(url: LogUrl, experiment: UUID, kind: str, spine_offset: int) -> None:
    """Runs a tracker's process until its experiment is written completely, a signal, or the daemon's death."""
    import asyncio
    import os
    import signal

    from rftd.daemon.serve.log_source import connect_log
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds
    from rftd.ops.logs import logger
    from rftd.workers.tracking.process import run_tracker, stop_when_orphaned

    clock = SystemClock()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    log = await connect_log(url, clock=clock, ids=SystemIds(clock))
    try:
        async with asyncio.TaskGroup() as tasks:
            # A killed daemon leaves it behind, and the next one starts its own.
            orphaned = tasks.create_task(stop_when_orphaned(stop, clock))
            await run_tracker(
                log,
                experiment,
                kind,
                stop=stop,
                clock=clock,
                logger=logger(role="tracker", tracker=kind),
                environ=os.environ,
                spine_offset=spine_offset,
            )
            orphaned.cancel()
    finally:
        await log.close()


@command.command("terms", hidden=True)
@click.option("--experiment", type=click.UUID, required=True, help="Id of the experiment.")
@click.option("--step", type=click.IntRange(1), required=True, help="Step whose terms are recomputed.")
@click.option("--into", type=click.Path(), required=True, help="File to write.")
@worker_log_option
@config_option
@click.pass_context
def terms(ctx: click.Context, log_at: LogUrl, experiment: UUID, step: int, into: str) -> None:
    """Recompute the terms of a step's objective at each token by a replay. The daemon starts it."""
    import asyncio

    from rftd.daemon.cli.output.data import emit_line
    from rftd.daemon.cli.output.failure import leaves
    from rftd.ops.errors import RftdError
    from rftd.ops.logs import configure
    from rftd.streams.log.backend import backend_of

    configure(libraries=True)
    url = backend_of(log_at).checked(log_at.text)
    try:
        asyncio.run(_recompute_terms(url, experiment, step, into))
    except (RftdError, ExceptionGroup) as raised:
        error = next((leaf for leaf in leaves(raised) if isinstance(leaf, RftdError)), None)
        if error is None:
            raise
        # For the daemon, reading this line from the pipe.
        emit_line({"what": error.what, "where": error.where, "fix": error.fix})
        ctx.exit(1)


async def _recompute_terms(url: LogUrl, experiment: UUID, step: int, into: str) -> None:
    import asyncio
    from pathlib import Path

    import msgspec

    from rftd.daemon.cli.output.data import emit_line
    from rftd.daemon.serve.log_source import connect_log
    from rftd.ops.clock import SystemClock
    from rftd.ops.ids import SystemIds
    from rftd.workers.tracking.process import stop_when_orphaned
    from rftd.workers.training.step_terms import TermsProgress, recompute_terms

    def report(progress: TermsProgress) -> None:
        emit_line(msgspec.to_builtins(progress))

    clock = SystemClock()
    log = await connect_log(url, clock=clock, ids=SystemIds(clock))
    try:
        work = recompute_terms(log, experiment, step, Path(into), clock=clock, report=report)
        async with asyncio.TaskGroup() as tasks:
            recomputing = tasks.create_task(work)
            # A killed daemon leaves the process behind, and forgets the request.
            orphaned = tasks.create_task(stop_when_orphaned(asyncio.Event(), clock))
            await asyncio.wait((recomputing, orphaned), return_when=asyncio.FIRST_COMPLETED)
            recomputing.cancel()
            orphaned.cancel()
    finally:
        await log.close()


def _run_worker(
    role: str,
    log_at: LogUrl,
    experiment: str | None,
    slot: int | None,
    spine_offset: int,
    worker: UUID | None,
    traces: TraceOptions | None,
) -> None:
    """Runs a worker of this role; `experiment` is an id, None for any running one."""
    import asyncio
    import gc
    from uuid import UUID

    from rftd.ops.clock import SystemClock
    from rftd.ops.cycles import PYTHONS_THRESHOLDS, tune_collector
    from rftd.ops.errors import UsageError
    from rftd.ops.logs import logger
    from rftd.ops.tracing.trace_options import tracing
    from rftd.streams.log.backend import backend_of
    from rftd.workers.hosts.started_here import StartedHere

    url = backend_of(log_at).checked(log_at.text)
    try:
        id = UUID(experiment) if experiment else None
    except ValueError:
        raise UsageError(f"{experiment!r} is no id", field="--experiment", fix="see rftd ls --json") from None
    if role == "explorer":
        tune_collector()
    else:  # a trainer's cycles may hold activations: they are collected at Python's default rate
        gc.set_threshold(*PYTHONS_THRESHOLDS)
    started = StartedHere()
    if ended := started.end_leftovers_of_dead():
        logger(role=role).warning("worker.leftovers_ended", processes=ended)
    try:
        with tracing(traces, role, clock=SystemClock(), logger=logger(role=role)) as tracer:
            asyncio.run(_work_until_end(role, url, id, slot, spine_offset, worker, tracer))
    finally:
        started.end()


async def _work_until_end(
    role: str,
    url: LogUrl,
    experiment: object,
    slot: int | None,
    spine_offset: int,
    worker: UUID | None,
    tracer: Tracer | None,
) -> None:
    """Connects to the log, and works until the experiment's end or a signal."""
    import asyncio
    import signal
    from functools import partial
    from uuid import UUID

    from rftd.daemon.serve.external_worker import ExternalWorker
    from rftd.daemon.serve.log_source import connect_log, identity_at
    from rftd.daemon.serve.reconnecting import opened_in_time
    from rftd.ops.clock import SystemClock
    from rftd.ops.errors import RftdError
    from rftd.ops.ids import SystemIds
    from rftd.ops.logs import logger
    from rftd.workers.process import run_explorer, run_trainer

    clock = SystemClock()
    ids = SystemIds(clock)
    if slot is None:
        slot = ids.new().int % limits.WORKER_SLOTS
    bound = logger(role=role, slot=slot)
    stop = asyncio.Event()
    connected = asyncio.Event()
    starting = asyncio.current_task()

    def on_signal() -> None:
        stop.set()
        if not connected.is_set() and starting is not None:
            starting.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)

    def on_error(error: RftdError) -> None:
        bound.warning("waiting", part="log", code=error.code, reason=error.what, fix=error.fix)

    try:
        # A worker ordered by a daemon ends if the log is away: the daemon starts another one. A worker started by hand
        # has to wait by itself.
        if isinstance(experiment, UUID):
            log = await connect_log(url, clock=clock, ids=ids)
        else:
            log = await opened_in_time(lambda: connect_log(url, clock=clock, ids=ids), on_error=on_error, clock=clock)
    except asyncio.CancelledError:
        if stop.is_set():
            return
        raise
    connected.set()
    shared_arguments: dict[str, Any] = {"clock": clock, "ids": ids, "logger": bound, "tracer": tracer}
    try:
        if not isinstance(experiment, UUID):
            await ExternalWorker(log, role, slot, **shared_arguments, identity=await identity_at(url)).run(stop)
        else:
            work = run_trainer if role == "trainer" else partial(run_explorer, slot=slot)
            await work(log, experiment, stop=stop, spine_offset=spine_offset, worker=worker, **shared_arguments)
    finally:
        await log.close()
