"""`rftd doctor`: checks the machine, the daemon, and an experiment file ahead of use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.settings import Settings, data_folder, postgres_option, shared_options

if TYPE_CHECKING:
    from rftd.ops.clock import Clock
    from rftd.ops.health import Diagnosis
    from rftd.streams.log.backend import LogUrl
    from rftd.workers.devices.host import Host


@click.command("doctor")
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one field of FILE; repeatable.")
@log_option
@postgres_option
@click.option(
    "--ray-address",
    metavar="ADDRESS",
    envvar="RFTD_RAY_ADDRESS",
    help="Ray cluster of rftd serve --workers ray: HOST:PORT.",
)
@shared_options
@click.pass_context
def command(
    ctx: click.Context,
    file: str | None,
    overrides: tuple[str, ...],
    log_at: LogUrl | None,
    postgres: str | None,
    ray_address: str | None,
) -> None:
    """Check this machine and its daemon; with FILE, an experiment too.

    Python, clock, devices and engines, the data folder, the log, Kafka, Postgres, Ray, the port, the daemon, its token
    and its metrics are checked. Of FILE (- for standard input) it is the model, its tokenizer and chat template, the
    columns of datasets, the lengths of prompts and the space for checkpoints. Exit 1 if a check fails.
    """
    from rftd.daemon.cli.verbs.arguments import read_experiment
    from rftd.ops.clock import SystemClock
    from rftd.workers.devices.discovery import find_host

    settings: Settings = ctx.obj
    if overrides and file is None:
        raise click.UsageError("-s sets a field of FILE, and none is given")
    host = find_host()
    clock = SystemClock()
    # First of all: a missing file is a wrong command line, and needs no wait.
    text = None if file is None else read_experiment(file)
    findings = _check_machine(settings, host, clock, log_at, postgres, ray_address or "")
    if text is not None:
        findings += _check_experiment_file(*text, overrides, host)
    _print_findings(findings, settings)
    ctx.exit(1 if any(finding.status == "fail" for finding in findings) else 0)


def _check_machine(
    settings: Settings, host: Host, clock: Clock, log_at: LogUrl | None, postgres: str | None, ray_address: str
) -> list[Diagnosis]:
    """Returns the findings about this machine, its data folder and its daemon."""
    import os
    from pathlib import Path

    from rftd.daemon.observe.doctor.access import check_access, check_socket_access
    from rftd.daemon.observe.doctor.cluster import check_log, check_postgres
    from rftd.daemon.observe.doctor.daemon import check_daemon, check_endpoint, check_tokens
    from rftd.daemon.observe.doctor.engines import check_devices, check_engines, check_gpus, check_ray, check_tinker
    from rftd.daemon.observe.doctor.folder import check_folder, check_socket
    from rftd.daemon.observe.doctor.machine import (
        check_clock,
        check_identity,
        check_limits,
        check_packages,
        check_python,
    )
    from rftd.daemon.observe.doctor.sandboxes import check_sandboxes

    folder = Path(data_folder(settings)).absolute()
    return [
        *check_python(),
        *check_identity(),
        *check_packages(),
        *check_clock(clock),
        *check_limits(),
        *check_devices(host),
        *check_gpus(host),
        *check_engines(host),
        *check_ray(host, ray_address, os.environ),
        *check_tinker(host, os.environ),
        *check_sandboxes(),
        *check_folder(folder, clock),
        *check_access(folder),
        *((*check_socket(folder), *check_socket_access(folder)) if log_at is None else ()),
        *check_log(log_at),
        *check_postgres(postgres),
        *check_tokens(folder),
        *check_endpoint(folder),
        *check_daemon(settings, os.environ, clock),
    ]


def _check_experiment_file(text: str, origin: str, overrides: tuple[str, ...], host: Host) -> list[Diagnosis]:
    """Returns the findings about an experiment file, read from `origin`."""
    from rftd.daemon.cli.verbs.arguments import load_experiment
    from rftd.daemon.config.issue import ConfigErrors
    from rftd.daemon.observe.doctor.experiment import check_file, of_errors

    try:
        submission = load_experiment(text, origin, overrides, host, True)
    except ConfigErrors as error:
        return of_errors(error.errors)
    return check_file(submission, host)


def _advice(finding: Diagnosis) -> str:
    """Returns the fix of a finding, on a separate line; without a problem, the line is a hint."""
    label = "hint" if finding.status == "ok" else "fix"
    return f"\n{label}: {finding.fix}" if finding.fix else ""


def _print_findings(findings: list[Diagnosis], settings: Settings) -> None:
    """Prints the findings as JSON, or as a table with a summary below."""
    if settings.machine_readable:
        fit = all(finding.status != "fail" for finding in findings)
        emit({"ok": fit, "checks": [msgspec.structs.asdict(finding) for finding in findings]}, settings)
        return
    from rftd.daemon.cli.output.table import console_of, state, table

    rows = [(state(finding.status), finding.check, finding.what + _advice(finding)) for finding in findings]
    console = console_of(settings)
    console.print(table(("", "CHECK", "FOUND"), rows))
    failed = sum(finding.status == "fail" for finding in findings)
    warned = sum(finding.status == "warn" for finding in findings)
    console.print(f"{len(findings)} checks: {failed or 'none'} failed, {warned or 'none'} with a warning")
