"""`rftd report`: an experiment as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument


@click.command("report")
@experiment_argument
@click.option(
    "--to", "path", type=click.Path(dir_okay=False), metavar="FILE", help="File to write. Default: NAME.html."
)
@shared_options
@click.pass_obj
def command(settings: Settings, name: str, path: str | None) -> None:
    """Write experiment NAME as one HTML file: figures, curves, samples, evaluations, lineage and configuration.

    The file holds everything it shows, runs no script and asks nobody for anything, so it can be mailed or archived.
    An existing file is replaced.
    """
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.client.report import report_of
    from rftd.ops.clock import SystemClock
    from rftd.ops.errors import OutputError
    from rftd.ops.releases import release_of

    with Client(settings) as client:
        page = report_of(client, name, clock=SystemClock(), version=release_of("rftd"))
    file = Path(path or f"{Path(name).name}.html")
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", where=str(file), fix="name another --to") from None
    if not emitted({"file": str(file), "bytes": len(page.encode())}, settings) and settings.verbosity >= 0:
        say(f"wrote {file}, {len(page.encode()):,} bytes")
