"""`rftd logs`: the log lines of an experiment's workers, merged by time, or those of the daemon."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import click

from rftd.daemon.cli.output.data import emit, emit_line
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Duration, Settings, data_folder, shared_options
from rftd.daemon.cli.verbs.arguments import optional_experiment_argument
from rftd.daemon.http.views import logs
from rftd.daemon.http.views.logs import LogFilter, LogLevel, LogPage, LogRole, of_daemon, text_of
from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.clock import SystemClock, iso, time_ns_of
from rftd.ops.errors import UnreachableError, UsageError

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client

_INTERVAL_S: Final = 0.5
"""Seconds between two requests for new lines."""
_Ask = Callable[..., LogPage]
"""Returns the page of lines for the API's parameters."""


def _trace_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Returns the id in the form of log lines, extracted from a whole `traceparent` if necessary."""
    if value is None:
        return None
    text = value.strip().lower()
    parts = text.split("-")
    text = parts[1] if len(parts) == 4 else text.replace("-", "")
    if len(text) != 32 or set(text) - set("0123456789abcdef"):
        raise click.BadParameter(f"{value!r} is no trace id: 32 hexadecimal digits, as the viewer of traces shows it")
    return text


@click.command("logs")
@optional_experiment_argument
@click.option("--daemon", is_flag=True, help="The daemon's own lines; from its folder if no daemon answers.")
@click.option(
    "-n", "--lines", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Number of newest lines."
)
@click.option("--role", type=click.Choice(get_args(LogRole)), help="Only lines of this role, or about it.")
@click.option("--level", type=click.Choice(get_args(LogLevel)), help="Only this level and above.")
@click.option("--grep", metavar="TEXT", help="Only lines that contain TEXT.")
@click.option("--since", type=Duration(), metavar="TIME", help="Only lines from this last period: 30s, 10m, 2h.")
@click.option("--trace", metavar="ID", callback=_trace_id, help="Only lines written within this trace.")
@click.option("--local", is_flag=True, help="Show times in this machine's time zone, not in UTC.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines; Ctrl-C ends.")
@shared_options
@click.pass_obj
def command(
    settings: Settings,
    name: str | None,
    daemon: bool,
    lines: int,
    role: str | None,
    level: str | None,
    grep: str | None,
    since: float | None,
    trace: str | None,
    local: bool,
    follow: bool,
) -> None:
    """Show the log lines of experiment NAME's workers, merged by time, or with --daemon those of the daemon.

    The options choose among the last 4 MiB of each file. A traceback has the level of the line before it.
    """
    from rftd.daemon.http.client.client import Client

    if daemon == (name is not None):
        problem = "no experiment is named" if name is None else f"{name!r} is named, and --daemon is given too"
        raise UsageError(problem, field="NAME", fix="name an experiment, or give --daemon")
    oldest = None if since is None else iso(max(0, SystemClock().now_ns() - int(since * 1e9)))
    conditions = {"role": role, "level": level, "grep": grep, "since": oldest, "trace": trace}
    ask: _Ask
    try:
        with Client(settings) as client:
            ask = _daemon_source(client) if daemon else _experiment_source(client, name)
            _print_lines(partial(ask, **conditions), settings, lines=lines, local=local, follow=follow)
    except UnreachableError as error:
        file = DataFolder(Path(data_folder(settings))).daemon_log
        # A daemon named by its address may be anywhere, and this folder may belong to another one.
        named = settings.server or os.environ.get("RFTD_SERVER")
        if not daemon or named or not file.is_file():
            raise
        say(f"{error.what}: the lines are those of {file}", err=True)
        _print_lines(partial(_folder_page, file, conditions), settings, lines=lines, local=local, follow=follow)


def _daemon_source(client: Client) -> _Ask:
    """Returns the function asking for lines of the daemon's own log."""
    return lambda **asked: client.ask(logs.daemon_logs, **asked).value


def _experiment_source(client: Client, name: str | None) -> _Ask:
    """Returns the function asking for lines of an experiment's workers."""
    return lambda **asked: client.ask(logs.logs, name=name, **asked).value


def _folder_page(
    file: Path, conditions: Mapping[str, str | None], *, n: int = 100, after: str | None = None
) -> LogPage:
    """Reads a page of lines from the daemon's log file, without a daemon."""
    since = conditions["since"]
    chosen = LogFilter(
        role=conditions["role"],
        level=conditions["level"],
        pattern=conditions["grep"],
        since_ns=None if since is None else time_ns_of(since),
        trace_id=conditions["trace"],
    )
    return of_daemon(file, lines=n, conditions=chosen, after=after)


def _print_lines(ask: _Ask, settings: Settings, *, lines: int, local: bool, follow: bool) -> None:
    """Prints a page of lines; with `follow`, also each later line until an interrupt."""
    from rftd.daemon.http.views.wire import to_wire

    page = ask(n=lines)
    if settings.output in ("json", "yaml") and not follow:
        emit(to_wire(page), settings)
        return
    while True:
        for line in page.items:
            if settings.machine_readable:
                emit_line(to_wire(line))
            else:
                say(text_of(line, local=local))
        if not follow:
            return
        time.sleep(_INTERVAL_S)
        page = ask(after=json.dumps(page.next))
