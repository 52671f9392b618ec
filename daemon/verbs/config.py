"""`rftd config`: an experiment file, printed as the daemon reads it or checked. Neither asks the daemon.

`check` hears of the devices and engines of this machine, as a daemon here would.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rftd.daemon.config.loading import Submission
    from rftd.workers.devices.host import Host

_FILE = click.argument("file", type=click.Path(allow_dash=True))
_SET = click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one field; repeatable.")
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")


@click.group("config")
def config_group() -> None:
    """Check an experiment file, or print it as the daemon reads it."""


@config_group.command("show")
@_FILE
@_SET
@_JSON
def show(file: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Print FILE as the daemon reads it: current field names, `${...}` resolved, secrets as `{env: NAME}`."""
    from rftd.workers.devices.host import ANY_HOST

    submission = _load(file, overrides, ANY_HOST)
    if as_json:
        import json

        click.echo(json.dumps(submission.config, indent=2, ensure_ascii=False))
    else:
        import yaml

        click.echo(yaml.safe_dump(submission.config, sort_keys=False, allow_unicode=True), nl=False)


@config_group.command("check")
@_FILE
@_SET
@_JSON
def check(file: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Check whether FILE can be submitted here: prints `ok` and warnings, or all errors at once (exit 2)."""
    from rftd.workers.devices.discovery import find_host

    submission = _load(file, overrides, find_host(), as_json=as_json)
    if as_json:
        import json

        click.echo(json.dumps({"ok": True, "warnings": list(submission.warnings), "errors": []}, indent=2))
        return
    spec = submission.spec
    click.echo(f"ok: {spec.project}/{spec.name}, {_stages(submission)}")
    for warning in submission.warnings:
        click.echo(f"warning: {warning}", err=True)


def _stages(submission: Submission) -> str:
    parts = []
    for stage in submission.spec.stages:
        count, unit = (stage.total_steps, "step") if stage.total_steps else (stage.total_epochs, "epoch")
        parts.append(f"{stage.name} ({stage.algorithm.kind}, {count} {unit}{'s' if count != 1 else ''})")
    return " then ".join(parts)


def _load(file: str, overrides: tuple[str, ...], host: Host, *, as_json: bool = False) -> Submission:
    from rftd.daemon.config.issue import ConfigErrors
    from rftd.daemon.config.loading import load_file, load_text

    try:
        if file == "-":
            return load_text(sys.stdin.read(), "<stdin>", overrides=overrides, host=host)
        return load_file(file, overrides=overrides, host=host)
    except ConfigErrors as errors:
        if as_json:
            import json

            found = [
                {"code": e.code, "field": e.field, "what": e.what, "where": e.where, "fix": e.fix}
                for e in errors.errors
            ]
            click.echo(json.dumps({"ok": False, "warnings": [], "errors": found}, indent=2))
        else:
            click.echo(str(errors), err=True)
        raise click.exceptions.Exit(errors.exit_status) from None
