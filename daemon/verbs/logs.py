"""`rftd logs`: the log lines of an experiment's workers, merged by time."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import click

from rftd.daemon.output.data import emit, emit_line
from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.arguments import experiment_argument
from rftd.daemon.views import logs
from rftd.daemon.views.logs import LogLine

_INTERVAL_S: Final = 0.5


@click.command("logs")
@experiment_argument
@click.option(
    "-n", "--lines", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Number of newest lines."
)
@click.option("--role", help="Only this role: explorer or trainer.")
@click.option("--level", type=click.Choice(["debug", "info", "warning", "error"]), help="Only this level and above.")
@click.option("--grep", metavar="TEXT", help="Only lines that contain TEXT.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines; Ctrl-C ends.")
@shared_options
@click.pass_obj
def command(
    settings: Settings, name: str, lines: int, role: str | None, level: str | None, grep: str | None, follow: bool
) -> None:
    """Show the log lines of experiment NAME's workers, merged by time."""
    from rftd.daemon.client.client import Client

    with Client(settings) as client:
        answer = client.ask(logs.logs, name=name, n=lines, role=role)
        if settings.output in ("json", "yaml") and not follow:
            plain = answer.plain()
            kept = zip(plain["items"], answer.value.items, strict=True)
            emit({**plain, "items": [item for item, line in kept if _wanted(line, level, grep)]}, settings)
            return
        while True:
            for item, line in zip(answer.plain()["items"], answer.value.items, strict=True):
                if not _wanted(line, level, grep):
                    continue
                if settings.machine_readable:
                    emit_line(item)
                else:
                    click.echo(_text(line))
            if not follow:
                return
            time.sleep(_INTERVAL_S)
            answer = client.ask(logs.logs, name=name, role=role, after=json.dumps(answer.value.next))


_LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def _wanted(line: LogLine, level: str | None, grep: str | None) -> bool:
    if level is not None and line.level in _LEVELS and _LEVELS.index(line.level) < _LEVELS.index(level):
        return False
    return grep is None or grep in _text(line)


def _text(line: LogLine) -> str:
    owner = line.role if line.slot is None else f"{line.role}:{line.slot}"
    fields = " ".join(f"{key}={_value(value)}" for key, value in line.fields.items())
    return f"{line.time or '-':<24}  {owner:<11}  {line.level or '-':<7}  {line.event}  {fields}".rstrip()


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
