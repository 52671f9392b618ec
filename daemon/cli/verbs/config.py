"""`rftd config`: an experiment file, printed in effective or written form, or checked.

The verbs see the devices and engines of this machine, as a local daemon would; `check` asks a reachable daemon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rftd.daemon.cli.output.stage_line import stage_line
from rftd.daemon.cli.output.terminal import say

if TYPE_CHECKING:
    from rftd.daemon.cli.settings import Settings
    from rftd.daemon.config.field_path import FieldPath
    from rftd.daemon.config.loading import Submission
    from rftd.ops.errors import RftdError
    from rftd.workers.devices.host import Host

_FILE = click.argument("file", type=click.Path(allow_dash=True))
"""Adds the argument FILE; `-` means standard input."""
_SET = click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one field; repeatable.")
"""Adds the option `-s KEY=VALUE`, passed as `overrides`."""
_JSON = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")
"""Adds the option `--json`, passed as `as_json`."""


@click.group("config")
def config_group() -> None:
    """Check an experiment file, or print what it would run."""


@config_group.command("show")
@_FILE
@_SET
@_JSON
@click.option(
    "--given", is_flag=True, help="Print only the contents of FILE, with current field names and `${...}` resolved."
)
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

        # YAML is a file with `${` resolved unless escaped; JSON is data in the daemon's form.
        click.echo(yaml_text(as_written(config), comments), nl=False)


@config_group.command("check")
@_FILE
@_SET
@_JSON
@click.option("--server", metavar="URL", help="Address of the daemon. Default: RFTD_SERVER, else the daemon of --data.")
@click.option("--data", metavar="DIR", help="Folder of the daemon. Default: RFTD_DATA, else ./.rftd.")
@click.option("--here", is_flag=True, help="Check here only, without a daemon.")
def check(
    file: str, overrides: tuple[str, ...], *, as_json: bool, server: str | None, data: str | None, here: bool
) -> None:
    """Check whether FILE can be submitted: prints `ok` and warnings, or all errors at once (exit 2).

    The daemon is asked, where one answers; else FILE is checked as a daemon on this machine would.
    """
    from rftd.daemon.cli.settings import Settings
    from rftd.ops.errors import ConflictError, UsageError

    if here and (server or data):
        raise click.UsageError("--here asks no daemon, and --server and --data name one")
    try:
        submission, verdict, warnings = _checked(file, overrides, None if here else Settings(server=server, data=data))
    except (UsageError, ConflictError) as error:
        _show_errors(error, as_json=as_json)
        raise click.exceptions.Exit(error.exit_status) from None
    if as_json:
        import json

        outcome = {"ok": True, "warnings": warnings, "errors": []} | ({"said": verdict} if verdict else {})
        click.echo(json.dumps(outcome, indent=2))
        return
    spec = submission.spec
    say(f"ok: {spec.project}/{spec.name}, {stage_line(submission.spec)}")
    if verdict:
        say(verdict)
    for warning in warnings:
        say(f"warning: {warning}", err=True)


def _checked(
    file: str, overrides: tuple[str, ...], settings: Settings | None
) -> tuple[Submission, str, tuple[str, ...]]:
    """Returns the submission, the daemon's verdict, and the warnings; without `settings` no daemon is asked.

    Raises the errors of a submission.
    """
    import os
    from functools import partial

    from rftd.daemon.cli.verbs.arguments import load_experiment, read_experiment
    from rftd.workers.devices.discovery import find_host

    text, origin = read_experiment(file)
    load = partial(load_experiment, text, origin, overrides)
    if settings is None:
        submission = load(find_host(), False)
        return submission, "", submission.warnings
    from rftd.daemon.http.client.dry_run import judged

    judged_submission = judged(load, settings, os.environ)
    return judged_submission.submission, judged_submission.there.said, judged_submission.warnings


@config_group.command("schema")
def schema() -> None:
    """Print the JSON Schema of the experiment file, for editors and other programs."""
    import json

    from rftd.daemon.config.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _load(file: str, overrides: tuple[str, ...], host: Host) -> Submission:
    """Loads FILE for workers on `host`; prints errors and exits with their status."""
    from rftd.daemon.cli.verbs.arguments import load_experiment, read_experiment
    from rftd.daemon.config.issue import ConfigErrors

    try:
        return load_experiment(*read_experiment(file), overrides, host, False)
    except ConfigErrors as errors:
        _show_errors(errors, as_json=False)
        raise click.exceptions.Exit(errors.exit_status) from None


def _show_errors(error: RftdError, *, as_json: bool) -> None:
    """Prints the errors of a file: as JSON on standard output, else as text on standard error."""
    from rftd.daemon.cli.output.failure import parts

    if as_json:
        import json

        error_objects = [
            {"code": e.code, "field": e.field, "what": e.what, "where": e.where, "fix": e.fix} for e in parts(error)
        ]
        click.echo(json.dumps({"ok": False, "warnings": [], "errors": error_objects}, indent=2))
    else:
        say(str(error), err=True)
