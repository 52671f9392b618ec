"""`rftd logs`: the log lines of an experiment's workers, merged by time."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Final, get_args

import click

from rftd.daemon.output.data import emit, emit_line
from rftd.daemon.output.terminal import say
from rftd.daemon.settings import Duration, Settings, shared_options
from rftd.daemon.verbs.arguments import experiment_argument
from rftd.daemon.views import logs
from rftd.daemon.views.logs import LogLevel, LogRole, text_of
from rftd.ops.clock import SystemClock, iso

_INTERVAL_S: Final = 0.5


def _trace_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """The id in the form of the lines; a whole `traceparent` has it, too."""
    if value is None:
        return None
    text = value.strip().lower()
    parts = text.split("-")
    text = parts[1] if len(parts) == 4 else text.replace("-", "")
    if len(text) != 32 or set(text) - set("0123456789abcdef"):
        raise click.BadParameter(f"{value!r} is no trace id: 32 hexadecimal digits, as the viewer of traces shows it")
    return text


@click.command("logs")
@experiment_argument
@click.option(
    "-n", "--lines", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Number of newest lines."
)
@click.option("--role", type=click.Choice(get_args(LogRole)), help="Only lines of this role.")
@click.option("--level", type=click.Choice(get_args(LogLevel)), help="Only this level and above.")
@click.option("--grep", metavar="TEXT", help="Only lines that contain TEXT.")
@click.option("--since", type=Duration(), metavar="TIME", help="Only lines of the last so long: 30s, 10m, 2h.")
@click.option("--trace", metavar="ID", callback=_trace_id, help="Only lines written within this trace.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines; Ctrl-C ends.")
@shared_options
@click.pass_obj
def command(
    settings: Settings,
    name: str,
    lines: int,
    role: str | None,
    level: str | None,
    grep: str | None,
    since: float | None,
    trace: str | None,
    follow: bool,
) -> None:
    """Show the log lines of experiment NAME's workers, merged by time.

    The options choose among the last 4 MiB of each worker's file. A traceback has the level of the line before it.
    """
    from rftd.daemon.client.client import Client

    oldest = None if since is None else iso(SystemClock().now_ns() - int(since * 1e9))
    with Client(settings) as client:
        ask = partial(client.ask, logs.logs, name=name, role=role, level=level, grep=grep, since=oldest, trace=trace)
        answer = ask(n=lines)
        if settings.output in ("json", "yaml") and not follow:
            emit(answer.plain(), settings)
            return
        while True:
            for item, line in zip(answer.plain()["items"], answer.value.items, strict=True):
                if settings.machine_readable:
                    emit_line(item)
                else:
                    say(text_of(line))
            if not follow:
                return
            time.sleep(_INTERVAL_S)
            answer = ask(after=json.dumps(answer.value.next))
