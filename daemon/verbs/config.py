"""`rftd config`: an experiment file, printed as it would run or as it is written, or checked.

They hear of the devices and engines of this machine, as a daemon here would; `check` asks a daemon if one is named.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rftd.daemon.client.dry_run import DryRun
    from rftd.daemon.config.field_path import FieldPath
    from rftd.daemon.config.loading import Submission
    from rftd.ops.errors import RftdError
    from rftd.workers.devices.host import Host

_FILE = click.argument("file", type=click.Path(allow_dash=True))
_SET = click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one field; repeatable.")
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")


@click.group("config")
def config_group() -> None:
    """Check an experiment file, or print what it would run."""


@config_group.command("show")
@_FILE
@_SET
@_JSON
@click.option("--given", is_flag=True, help="Only what FILE says: current field names, `${...}` resolved.")
@click.option("--origin", is_flag=True, help="Say where each value comes from, as a comment.")
def show(file: str, overrides: tuple[str, ...], *, as_json: bool, given: bool, origin: bool) -> None:
    """Print what FILE would run here, every default and argument included; secrets are `{env: NAME}`.

    It is an experiment file itself. Its section `derived` says what follows from the rest: GPUs, batches, folders.
    """
    from rftd.workers.devices.discovery import find_host
    from rftd.workers.devices.host import ANY_HOST

    if given and origin:
        raise click.UsageError("--given prints what is written, and --origin tells where the rest comes from")
    submission = _load(file, overrides, ANY_HOST if given else find_host())
    config = submission.config
    comments: dict[FieldPath, str] = {}
    if not given:
        from rftd.daemon.config.effective.experiment import effective_config

        config = effective_config(submission.spec)
    if origin:
        from rftd.daemon.config.effective.origins import origins

        comments = origins(config, submission.config, submission.source)
    if as_json:
        import json

        from rftd.daemon.config.field_path import show as shown

        # JSON has no comments: the origins are a mapping beside the file.
        named = {shown(path): text for path, text in comments.items()}
        click.echo(json.dumps({"config": config, "origin": named} if origin else config, indent=2, ensure_ascii=False))
    else:
        from rftd.daemon.config.interpolation import as_written
        from rftd.daemon.config.yaml_text import yaml_text

        # YAML is a file, in which a `${` is resolved unless it is escaped; JSON is data as the daemon takes them.
        click.echo(yaml_text(as_written(config), comments), nl=False)


@config_group.command("check")
@_FILE
@_SET
@_JSON
@click.option("--server", metavar="URL", help="Ask the daemon at URL, too. Default: nobody is asked.")
def check(file: str, overrides: tuple[str, ...], *, as_json: bool, server: str | None) -> None:
    """Check whether FILE can be submitted here: prints `ok` and warnings, or all errors at once (exit 2)."""
    from rftd.workers.devices.discovery import find_host
    from rftd.workers.devices.host import ANY_HOST

    # A daemon that is asked knows its own machine, which may be another one.
    submission = _load(file, overrides, ANY_HOST if server else find_host(), as_json=as_json, drafts=bool(server))
    there = _ask(server, submission, as_json=as_json) if server else None
    said = there.report.warnings if there and there.report else []
    warnings = list(dict.fromkeys([*submission.warnings, *said]))
    if as_json:
        import json

        result = {"ok": True, "warnings": warnings, "errors": []} | ({"said": there.said} if there else {})
        click.echo(json.dumps(result, indent=2))
        return
    spec = submission.spec
    click.echo(f"ok: {spec.project}/{spec.name}, {_stages(submission)}")
    if there:
        click.echo(there.said)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _ask(server: str, submission: Submission, *, as_json: bool) -> DryRun:
    """The word of the daemon at `server`; what it refuses is shown as what is refused here."""
    from rftd.daemon.client.dry_run import dry_run
    from rftd.daemon.settings import Settings
    from rftd.ops.errors import ConflictError, UsageError

    try:
        return dry_run(Settings(server=server), submission)
    except (UsageError, ConflictError) as error:
        _show_errors(error, as_json=as_json)
        raise click.exceptions.Exit(error.exit_status) from None


@config_group.command("schema")
def schema() -> None:
    """Print the JSON Schema of the experiment file, for editors and other programs."""
    import json

    from rftd.daemon.config.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _stages(submission: Submission) -> str:
    parts = []
    for stage in submission.spec.stages:
        count, unit = (stage.total_steps, "step") if stage.total_steps else (stage.total_epochs, "epoch")
        parts.append(f"{stage.name} ({stage.algorithm.kind}, {count} {unit}{'s' if count != 1 else ''})")
    return " then ".join(parts)


def _load(
    file: str, overrides: tuple[str, ...], host: Host, *, as_json: bool = False, drafts: bool = False
) -> Submission:
    from rftd.daemon.config.issue import ConfigErrors
    from rftd.daemon.config.loading import load_file, load_text, read_stream

    try:
        if file == "-":
            text = read_stream(sys.stdin.buffer, "<stdin>")
            return load_text(text, "<stdin>", overrides=overrides, host=host, drafts=drafts)
        return load_file(file, overrides=overrides, host=host, drafts=drafts)
    except ConfigErrors as errors:
        _show_errors(errors, as_json=as_json)
        raise click.exceptions.Exit(errors.exit_status) from None


def _show_errors(error: RftdError, *, as_json: bool) -> None:
    from rftd.daemon.output.failure import parts

    if as_json:
        import json

        found = [
            {"code": e.code, "field": e.field, "what": e.what, "where": e.where, "fix": e.fix} for e in parts(error)
        ]
        click.echo(json.dumps({"ok": False, "warnings": [], "errors": found}, indent=2))
    else:
        click.echo(str(error), err=True)
