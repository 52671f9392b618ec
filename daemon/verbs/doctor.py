"""`rftd doctor`: every check with what it found and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rftd.daemon.log_option import log_option
from rftd.daemon.output.data import emit
from rftd.daemon.settings import Settings, data_folder, postgres_option, shared_options

if TYPE_CHECKING:
    from rftd.streams.backends.backend import LogUrl


@click.command("doctor")
@log_option
@postgres_option
@shared_options
@click.pass_context
def command(ctx: click.Context, log_at: LogUrl | None, postgres: str | None) -> None:
    """Check this machine, the data folder, Kafka, Postgres and the daemon. Exit 1 if a check failed."""
    from pathlib import Path

    from rftd.daemon.doctor.cluster import check_log, check_postgres
    from rftd.daemon.doctor.daemon import check_daemon, check_endpoint
    from rftd.daemon.doctor.machine import check_folder, check_identity, check_packages, check_python

    settings: Settings = ctx.obj
    folder = Path(data_folder(settings)).absolute()
    findings = [
        *check_python(),
        *check_identity(),
        *check_packages(),
        *check_folder(folder),
        *check_log(log_at),
        *check_postgres(postgres),
        *check_endpoint(folder),
        *check_daemon(settings),
    ]
    failed = any(finding.status == "fail" for finding in findings)
    if settings.machine_readable:
        from dataclasses import asdict

        emit({"ok": not failed, "checks": [asdict(finding) for finding in findings]}, settings)
    else:
        from rftd.daemon.output.table import console_of, state, table

        rows = [
            (state(finding.status), finding.check, finding.what + (f"\nfix: {finding.fix}" if finding.fix else ""))
            for finding in findings
        ]
        console_of(settings).print(table(("", "CHECK", "FOUND"), rows))
    ctx.exit(1 if failed else 0)
