"""`rftd report`: an experiment, a group of rollouts, or several experiments, as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiments_argument


@click.command("report")
@experiments_argument
@click.option(
    "--to", "path", type=click.Path(dir_okay=False), metavar="FILE", help="File to write. Default: NAME.html."
)
@click.option("--group", metavar="ID", help="Only this group of rollouts of NAME, each answer with its text.")
@shared_options
@click.pass_obj
def command(settings: Settings, names: tuple[str, ...], path: str | None, group: str | None) -> None:
    """Write experiment NAME as one HTML file: figures, curves, samples, evaluations, lineage and configuration.

    Of several experiments: their cards, the fields that differ, and figures at equal steps.
    The file holds everything it shows, runs no script and asks nobody for anything, so it can be mailed or archived.
    An existing file is replaced.
    """
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.client.report import group_report_of, report_of, runs_report_of
    from rftd.ops.clock import SystemClock
    from rftd.ops.errors import OutputError, UsageError
    from rftd.ops.releases import release_of

    if group and len(names) > 1:
        raise UsageError("--group is of one experiment", field="--group", fix="name its experiment alone")
    clock, version = SystemClock(), release_of("rftd")
    with Client(settings) as client:
        if group:
            page = group_report_of(client, names[0], group, clock=clock, version=version)
        elif len(names) > 1:
            page = runs_report_of(client, names, clock=clock, version=version)
        else:
            page = report_of(client, names[0], clock=clock, version=version)
    file = Path(path or f"{'-'.join(Path(name).name for name in names)[:100]}.html")
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(file), fix="name another --to") from None
    if not emitted({"file": str(file), "bytes": len(page.encode())}, settings) and settings.verbosity >= 0:
        say(f"wrote {file}, {len(page.encode()):,} bytes")
