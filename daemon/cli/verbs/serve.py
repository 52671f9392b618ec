"""`rftd serve`: the daemon, in one process."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rftd.daemon.cli.alert_options import alert_options
from rftd.daemon.cli.allowance_options import allowance_options
from rftd.daemon.cli.daemon_file import checked_postgres_url, config_option
from rftd.daemon.cli.entrance_options import entrance_options
from rftd.daemon.cli.folders_option import begin_process, folders_option
from rftd.daemon.cli.keeping_options import keeping_options
from rftd.daemon.cli.launching_options import launching_options
from rftd.daemon.cli.log_option import SHARED, names_log, serve_log_option
from rftd.daemon.cli.output.terminal import fitting_errors, say
from rftd.daemon.cli.price import Price
from rftd.daemon.cli.settings import Duration, Settings, Size, current, data_folder, shared_options
from rftd.daemon.cli.trace_option import trace_option

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event

    from rftd.daemon.cli.alert_options import AlertOptions
    from rftd.daemon.cli.service_options import ServiceOptions
    from rftd.daemon.serve.claim import Claim
    from rftd.daemon.serve.entrance import EntranceOptions
    from rftd.daemon.serve.keeping import Keeping
    from rftd.daemon.serve.launching import Launching
    from rftd.daemon.serve.service import Service
    from rftd.daemon.trust.allowances import Allowances
    from rftd.ops.log_file import LogFile
    from rftd.ops.own_folder import FolderAccess
    from rftd.ops.tracing.trace_options import TraceOptions
    from rftd.ops.tracing.tracer import Tracer
    from rftd.streams.log.backend import LogUrl

SWITCH_INTERVAL_S: Final = 0.0005
"""Interpreter switch interval in seconds: the log's writer releases the interpreter at each call of the database, and
Python's default of 5 ms would be added to each commit while another thread folds the tables.
"""


def _claiming(function: Callable[..., None]) -> Callable[..., None]:
    """Passes the verb a `claim` of folder and port, made before other options import anything."""

    @functools.wraps(function)
    def claiming(*args: Any, host: str, port: int, folders: FolderAccess, **kwargs: Any) -> None:
        begin_process(folders)
        folder = Path(data_folder(current(click.get_current_context())))
        claim = _claim_folder(folder, host, port, embedded=not names_log(kwargs))
        try:
            function(*args, host=host, port=port, folders=folders, claim=claim, **kwargs)
        finally:
            claim.release()

    return claiming


def _claim_folder(data_path: Path, host: str, port: int, *, embedded: bool) -> Claim:
    """Claims folder and port; a failure is also written to the daemon's log."""
    from rftd.daemon.serve.claim import Claim
    from rftd.daemon.serve.data_folder import DataFolder

    folder = DataFolder(data_path)
    try:
        return Claim(folder, host, port, embedded=embedded)
    except Exception as error:
        from rftd.ops.log_file import LogFile

        LogFile(folder.daemon_log).write(_last_words(error))
        raise


@click.command("serve")
@config_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    envvar="RFTD_HOST",
    help="Address to listen on; any but loopback needs TLS, or --tls-terminated-elsewhere.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7070,
    show_default=True,
    envvar="RFTD_PORT",
    help="Port to listen on; 0 picks a free one.",
)
@_claiming
@entrance_options
@serve_log_option
@click.option(
    "--postgres",
    metavar="URL",
    envvar="RFTD_POSTGRES",
    help="PostgreSQL database for the tables: postgresql://... Default: a SQLite file.",
)
@launching_options
@click.option(
    "--slots",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    envvar="RFTD_SLOTS",
    help="Experiments that run at the same time, each with its own workers; the others wait in a queue.",
)
@keeping_options
@click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    default="console",
    show_default=True,
    help="Format of the daemon's own log lines.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level of these lines.",
)
@trace_option
@allowance_options
@click.option(
    "--worker-lost-after",
    "lost_after_s",
    type=Duration(),
    default="15s",
    show_default=True,
    metavar="TIME",
    help="Kill and restart a worker that sent no heartbeat for this long; one is sent every second.",
)
@click.option(
    "--release-after",
    "release_after_s",
    type=Duration(),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Release the workers and the slot of an experiment that a person paused, after this long.",
)
@click.option(
    "--disk-reserve",
    type=Size(),
    metavar="SIZE",
    envvar="RFTD_DISK_RESERVE",
    help="Space to keep free on each volume, else experiments pause. Default: 1GiB or 5 %, the lesser. 0: none.",
)
@click.option(
    "--disk-budget",
    type=Size(),
    metavar="SIZE",
    envvar="RFTD_DISK_BUDGET",
    help="Space limit for --data and all experiments' folders, else experiments pause. Default: no limit.",
)
@folders_option
@click.option(
    "--accept-loss",
    "accept_loss",
    multiple=True,
    metavar="EXPERIMENT",
    help="Let an experiment continue although the log lost some of its records; your name is recorded. Repeatable.",
)
@click.option(
    "--take-over",
    "take_over",
    multiple=True,
    metavar="EXPERIMENT",
    help="Let this log have the folder of an experiment that remembers another log; '*': every folder. Repeatable.",
)
@click.option(
    "--price",
    "prices",
    type=Price(),
    multiple=True,
    metavar="KIND=USD",
    envvar="RFTD_PRICE",
    help="Dollars per hour of one `gpu`, or of a worker without any (`cpu`), for the cost at /metrics. Repeatable.",
)
@alert_options
@click.option("--end-with-stdin", is_flag=True, hidden=True, help="End with standard input, as for a private daemon.")
@shared_options
@click.pass_obj
def command(
    settings: Settings,
    host: str,
    port: int,
    door: EntranceOptions,
    log_at: LogUrl | None,
    postgres: str | None,
    launching: Launching,
    slots: int,
    keeping: Keeping,
    log_format: str,
    log_level: str,
    lost_after_s: float,
    release_after_s: float,
    disk_reserve: int | None,
    disk_budget: int | None,
    folders: FolderAccess,
    accept_loss: tuple[str, ...],
    take_over: tuple[str, ...],
    traces: TraceOptions | None,
    allowances: Allowances,
    prices: tuple[tuple[str, float], ...],
    alerts: AlertOptions,
    end_with_stdin: bool,
    claim: Claim,
) -> None:
    """Run the daemon. Log and tables lie below --data (default ./.rftd), or on Kafka and in PostgreSQL."""
    from rftd.daemon.cli.service_options import ServiceOptions
    from rftd.daemon.run.supervisor.disk_guard import DiskLimits
    from rftd.daemon.serve.data_folder import DataFolder
    from rftd.ops.log_file import LogFile
    from rftd.ops.logs import configure
    from rftd.streams.log.backend import backend_of

    _check_log(log_at, launching, keeping)
    file = LogFile(DataFolder(Path(data_folder(settings))).daemon_log)
    fit = None if log_format == "json" else fitting_errors
    configure(level=log_level, as_json=log_format == "json", fit=fit, file=file)
    options = ServiceOptions(
        data=Path(data_folder(settings)),
        host=host,
        port=port,
        door=door,
        worker_lost_after_s=lost_after_s,
        release_after_s=release_after_s,
        log_at=backend_of(log_at).checked(log_at.text) if log_at is not None else None,
        state_url=checked_postgres_url(postgres) if postgres else "",
        disk=DiskLimits(reserve_bytes=disk_reserve, budget_bytes=disk_budget),
        launching=launching,
        folders=folders,
        slots=slots,
        keeping=keeping,
        accept_loss=accept_loss,
        take_over=take_over,
        accepted_by=_operator() if accept_loss else "",
        traces=traces,
        allowances=allowances,
        prices=dict(prices),
        alerts=alerts,
    )
    _run(options, claim, file, end_with_stdin=end_with_stdin)


def _check_log(log_at: LogUrl | None, launching: Launching, keeping: Keeping) -> None:
    """Raises UsageError for a log incompatible with the other options."""
    from rftd.ops.errors import UsageError
    from rftd.streams.log.backend import backend_of

    if not launching.decides and log_at is None:
        raise UsageError(
            "a daemon of explorers alone needs another daemon on the same log, and the embedded log supports one",
            field="--roles",
            fix=f"name the log of both with {SHARED}",
        )
    if log_at is not None and keeping.drops:
        raise UsageError(
            f"payloads cannot be dropped on {backend_of(log_at).name}, whose records are immutable",
            field=keeping.drops,
            fix="leave it out",
        )
    if log_at is not None and not backend_of(log_at).serves:
        raise UsageError(
            f"no daemon can serve on {log_at.text}: the daemon that serves it already owns that log",
            field="--log",
            fix="leave it out, or name a log that many processes share",
        )


def _operator() -> str:
    """Returns the user at this machine, as far as known."""
    import getpass
    import platform

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        name = "somebody"
    return f"{name} at {platform.node()}"


def _run(options: ServiceOptions, claim: Claim, file: LogFile, *, end_with_stdin: bool) -> None:
    """Serves until the end; the reason for a failure is also written to the daemon's log."""
    import asyncio

    from rftd.ops.clock import SystemClock
    from rftd.ops.logs import logger
    from rftd.ops.tracing.trace_options import tracing

    try:
        # Around the loop: remaining spans are sent once nothing else waits.
        with tracing(options.traces, "daemon", clock=SystemClock(), logger=logger(role="daemon")) as tracer:
            asyncio.run(_serve(options, claim, tracer, end_with_stdin=end_with_stdin))
    except Exception as error:
        file.write(_last_words(error))  # standard error gets the same text in another form
        raise


def _say(text: str, *, err: bool = False) -> None:
    """Prints a line for the person starting the daemon; a closed terminal pipe (`| head`) gets no more."""
    try:
        say(text, err=err)
    except BrokenPipeError:
        # The stream keeps the text, and would try again at the next line and at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())


def _last_words(error: Exception) -> str:
    """Returns the reason for the daemon's end, as a line of its log."""
    import json
    import traceback

    from rftd.daemon.cli.output.failure import leaves
    from rftd.ops.clock import SystemClock, iso
    from rftd.ops.errors import RftdError
    from rftd.ops.redaction import mask_text

    rftd_error = next((leaf for leaf in leaves(error) if isinstance(leaf, RftdError)), None)
    error_fields = (
        {"code": rftd_error.code, "reason": rftd_error.what, "where": rftd_error.where, "fix": rftd_error.fix}
        if rftd_error
        else {}
    )
    trace = {} if rftd_error else {"exception": "".join(traceback.format_exception(error))}
    line = {"time": iso(SystemClock().now_ns()), "level": "error", "event": "daemon.failed", "role": "daemon"}
    return json.dumps(line | {name: mask_text(text) for name, text in (error_fields | trace).items() if text})


def _tell_where(options: ServiceOptions, service: Service) -> None:
    """Prints the places of the log, the API, the metrics and the traces."""
    _say(f"rftd: {options.where(service.folder)}")
    _say(f"  api      {service.url}/openapi.json")
    _say(f"  metrics  {service.url}/metrics")
    if options.traces is not None:
        _say(f"  traces   {options.traces.url}     ratio  {options.traces.ratio:g}")
    if service.keyring is None:
        _say("warning: --unsafe-allow-unauthenticated: anybody reaching this port may run commands as you", err=True)
    elif sys.stdout.isatty():
        # Only to a terminal: the first reader of this line has the owner's rights.
        _say(f"  browser  {service.url}{service.keyring.owner_link()}     once, within five minutes")


def _end_on(loop: AbstractEventLoop, stop: Event, end: Callable[[], None], *, end_with_stdin: bool) -> None:
    """Calls `end` for SIGTERM and SIGINT, and at the end of standard input: a private daemon's pipe closes with the
    program around it.
    """
    import signal

    def on_input() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            if not stop.is_set():
                end()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if end_with_stdin:
        loop.add_reader(0, on_input)


async def _serve(options: ServiceOptions, claim: Claim, tracer: Tracer | None, *, end_with_stdin: bool) -> None:
    """Runs the daemon until a signal, or the end of standard input with `end_with_stdin`."""
    import asyncio

    import httpx

    from rftd.daemon.http.client.address import authorization, trusted_by
    from rftd.daemon.serve.own_answer import own_readiness
    from rftd.daemon.serve.service import running
    from rftd.ops.clock import SystemClock
    from rftd.ops.cycles import tune_allocator, tune_collector
    from rftd.ops.ids import SystemIds
    from rftd.ops.logs import logger
    from rftd.ops.process_age import process_age_s
    from rftd.ops.releases import release_of

    # Before any thread is started, because arenas are set up with each thread's first allocation, and before the folds
    # are read: the collector freezes the objects of this moment and looks at them no more.
    tune_allocator()
    tune_collector()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    clock = SystemClock()
    stop = asyncio.Event()
    up = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()
    log = logger(role="daemon")

    def on_signal() -> None:
        if stop.is_set():
            raise SystemExit(130)  # the second signal: now
        stop.set()
        if not up.is_set() and starting is not None:
            # A daemon waiting for its log has no block to leave yet: only a cancellation ends the wait.
            starting.cancel()

    _end_on(loop, stop, on_signal, end_with_stdin=end_with_stdin)
    try:
        daemon = running(options, clock=clock, ids=SystemIds(clock), logger=log, tracer=tracer, claim=claim)
        async with daemon as service:
            tls = options.door.tls
            trusted = trusted_by(service.url) if tls is None else tls.trusting()
            headers = {} if service.keyring is None else authorization(service.keyring.tokens.owner_token)
            async with httpx.AsyncClient(verify=trusted, trust_env=False, headers=headers) as client:
                # Asked over HTTP like any client: this line is printed once the daemon answers, not once it expects to.
                answer = await own_readiness(client, service.url, clock=clock, logger=log)
            if not answer.is_success:  # the missing part has a name, and may appear
                _say(f"not ready yet: {answer.text.strip()}", err=True)
            up.set()
            _tell_where(options, service)
            log.info("daemon.ready", url=service.url, version=release_of("rftd"))
            _say(f"ready in {process_age_s():.1f} s at {service.url}, process {os.getpid()}   next: rftd submit FILE")
            await stop.wait()
            log.info("daemon.drains")
            _say("draining: workers finish their current work; press again to stop now", err=True)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        _say("stopped before it was ready", err=True)
