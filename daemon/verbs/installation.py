"""`rftd doctor`, `rftd version`, `rftd completion`: this installation, checked, named, and completed by a shell."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import click

from rftd.daemon.log_option import log_option
from rftd.daemon.output.data import emit, emitted
from rftd.daemon.settings import Settings, data_folder, postgres_option, shared_options

if TYPE_CHECKING:
    from rftd.streams.backends.backend import LogUrl


@click.command("doctor")
@log_option
@postgres_option
@shared_options
@click.pass_context
def doctor(ctx: click.Context, log_at: LogUrl | None, postgres: str | None) -> None:
    """Check this machine, its devices and engines, the data folder, Kafka, Postgres and the daemon.

    Exit 1 if a check fails.
    """
    import os
    from pathlib import Path

    from rftd.daemon.doctor.cluster import check_log, check_postgres
    from rftd.daemon.doctor.daemon import check_daemon, check_endpoint
    from rftd.daemon.doctor.engines import check_devices, check_engines, check_ray, check_tinker
    from rftd.daemon.doctor.machine import check_folder, check_identity, check_packages, check_python
    from rftd.workers.devices.discovery import find_host

    settings: Settings = ctx.obj
    folder = Path(data_folder(settings)).absolute()
    host = find_host()
    findings = [
        *check_python(),
        *check_identity(),
        *check_packages(),
        *check_devices(host),
        *check_engines(host),
        *check_ray(host),
        *check_tinker(host, os.environ),
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


@click.command("version")
@shared_options
@click.pass_obj
def version(settings: Settings) -> None:
    """Show the versions of this program and of the daemon, if one answers."""
    from contextlib import suppress
    from dataclasses import replace

    from rftd.daemon.client.client import Client
    from rftd.daemon.views.version import version as read_version
    from rftd.ops.errors import RftdError
    from rftd.ops.releases import release_of

    daemon = None
    with Client(replace(settings, timeout_s=min(settings.timeout_s, 2.0))) as client:
        url = client.url
        with suppress(RftdError):
            daemon = client.ask(read_version).plain()
    mine = {"version": release_of("rftd"), "python": platform.python_version()}
    if emitted({"client": mine, "daemon": daemon, "server": url}, settings):
        return
    click.echo(f"rftd {mine['version']} (python {mine['python']})")
    if daemon is None:
        click.echo(f"daemon: none answers at {url}")
    else:
        click.echo(f"daemon {daemon['version']} (python {daemon['python']}) at {url}")


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL: eval "$(rftd completion bash)"."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    click.echo(kind(root, {}, "rftd", "_RFTD_COMPLETE").source())
