"""`rftd submit`: reads and sends an experiment file, and may wait for the end; `rftd fork`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.output.stage_line import stage_line
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument, request_id_option
from rftd.daemon.cli.verbs.rehearsal import dry_run_option, show_consequence
from rftd.daemon.http.views.memory import MemoryRow, memory_line, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rftd.daemon.config.loading import Submission
    from rftd.daemon.http.client.client import Answer, Client
    from rftd.daemon.http.views.commands import ForkReceipt, SubmitReceipt
    from rftd.streams.spec.spec import ExperimentSpec
    from rftd.workers.devices.host import Host


@click.command("submit")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one field; repeatable.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label the experiment; repeatable.")
@click.option("--priority", type=int, metavar="N", help="Priority in the queue: the highest goes first. Default: 0.")
@click.option("--wait", is_flag=True, help="Follow the experiment to its end; exit 1 if it does not complete.")
@click.option("--dry-run", is_flag=True, help="Check the file as the daemon would, and submit nothing.")
@click.option("--pull", is_flag=True, help="First download from the Hugging Face hub what the daemon's cache lacks.")
@click.option(
    "--request-id", metavar="ID", help="Idempotency key: repeated with the same ID, a submission changes nothing."
)
@shared_options
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    overrides: tuple[str, ...],
    labels: tuple[str, ...],
    priority: int | None,
    wait: bool,
    dry_run: bool,
    pull: bool,
    request_id: str | None,
) -> None:
    """Submit the experiment in a YAML FILE (- for standard input)."""
    from functools import partial

    from rftd.daemon.cli.verbs.arguments import load_experiment, read_experiment
    from rftd.daemon.config.issue import say_where
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.views import commands
    from rftd.ops.errors import RftdError, UsageError
    from rftd.workers.devices.host import ANY_HOST

    settings: Settings = ctx.obj
    named = dict(pair(label) for label in labels)
    text, origin = read_experiment(file)
    all_overrides = overrides if priority is None else (*overrides, f"priority={priority}")
    if dry_run:
        if pull:
            raise UsageError("--dry-run changes nothing, and --pull fetches files", fix="leave one of them out")
        _dry_run(partial(load_experiment, text, origin, all_overrides), named, settings)
        return
    submission = load_experiment(text, origin, all_overrides, ANY_HOST, True)
    # Other warnings come from the daemon: it knows the devices and the engines.
    _print_warnings((text for text in submission.warnings if text not in submission.spec.warnings), settings)
    with Client(settings) as client:
        if pull:
            _fetch_missing(client, submission, settings)
        body = commands.Submit(config=submission.config, labels=named)
        try:
            accepted = client.send(commands.submit, body, request_id=request_id)
        except RftdError as error:
            if submission.wrong and not isinstance(error, UsageError):
                raise submission.wrong from None
            # The daemon knows fields, not lines: the file is here, so here an error gets its line and column.
            say_where(error, submission.source)
            raise
        _print_warnings(accepted.value.warnings, settings)
        ctx.exit(taken_in(client, accepted, settings, f"stages: {stage_line(submission.spec)}", wait=wait))


def _print_warnings(warnings: Iterable[str], settings: Settings) -> None:
    """Prints warnings on standard error, unless quiet."""
    if settings.verbosity >= 0:
        for warning in warnings:
            say(f"warning: {warning}", err=True)


def _fetch_missing(client: Client, submission: Submission, settings: Settings) -> None:
    """Fetches hub files missing in the daemon's cache."""
    import sys

    from rftd.daemon.config.issue import say_where
    from rftd.daemon.http.client.pulling import pull
    from rftd.daemon.http.views import hub
    from rftd.ops.errors import RftdError

    def tell(text: str) -> None:
        if settings.verbosity >= 0:
            say(text, err=True)

    try:
        bars = settings.verbosity >= 0 and sys.stderr.isatty()
        pull(submission.config, client.ask(hub.hub_cache).value, tell, bars=bars)
    except RftdError as error:
        say_where(error, submission.source)
        raise


def _dry_run(load: Callable[[Host, bool], Submission], labels: dict[str, str], settings: Settings) -> None:
    """Shows the outcome of a submission, asking the daemon if there is one."""
    import os

    import msgspec

    from rftd.daemon.http.client.dry_run import judged

    judged_submission = judged(load, settings, os.environ, labels)
    submission = judged_submission.submission
    verdict = judged_submission.there
    memory = _memory_here(submission.spec) if verdict.report is None else verdict.report.memory
    _print_warnings(judged_submission.warnings, settings)
    if settings.machine_readable:
        plan: dict[str, Any] = {
            "ok": True,
            "daemon": verdict.url if verdict.report else None,
            "said": verdict.said,
            "config": submission.config,
            "warnings": judged_submission.warnings,
            "memory": msgspec.to_builtins(memory),
        }
        emit(plan, settings)
        return
    spec = submission.spec
    say(f"ok: {spec.project}/{spec.name}, {stage_line(submission.spec)}; nothing was submitted")
    for row in memory:
        say(f"memory: {memory_line(row)}")
    say(verdict.said)


def _memory_here(spec: ExperimentSpec) -> list[MemoryRow]:
    """Returns the memory of workers on this machine's devices; empty for models unreadable here."""
    from rftd.daemon.run.supervisor.memory_plan import with_memory
    from rftd.ops.errors import RftdError
    from rftd.workers.devices.discovery import find_host

    try:
        return rows_of(with_memory(spec, find_host()).memory)
    except (RftdError, OSError):  # the fault of a model is reported by `rftd doctor FILE`
        return []


def taken_in(
    client: Client,
    accepted: Answer[SubmitReceipt] | Answer[ForkReceipt],
    settings: Settings,
    summary: str,
    *,
    wait: bool,
) -> int:
    """Shows the receipt of an experiment, with a line of `summary`, and may wait for its end.

    Returns the exit status for the end; 0 without waiting.
    """
    receipt = accepted.value
    handle = _handle_of(client, receipt.name, receipt.id, receipt.position)
    if settings.machine_readable and not wait:
        emit(accepted.plain(), settings)
    elif settings.verbosity >= 0:
        say(f"accepted {receipt.id}  name={receipt.name}  event={receipt.event}", err=wait)
        say(f"  {summary}", err=wait)
        typed = shlex.quote(handle)
        say(f"  watch: rftd watch {typed}   logs: rftd logs {typed}   stop: rftd cancel {typed}", err=wait)
    if not wait:
        return 0
    from rftd.daemon.cli.verbs.watch import follow_to_end

    return follow_to_end(client, receipt.id, settings, after=receipt.position, handle=handle)


def _handle_of(client: Client, name: str, id: str, position: str) -> str:
    """Returns the handle for the next commands: the name if it means this experiment, else the id."""
    from rftd.daemon.http.views import experiments
    from rftd.ops.errors import RftdError

    try:
        return name if client.ask(experiments.summary, name=name, after=position).value.id == id else id
    except RftdError:
        return id


def pair(text: str) -> tuple[str, str]:
    """Returns a label's key and value. Raises BadParameter for a text without `=` or key."""
    key, equals, label_value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--label")
    return key, label_value


@click.command("fork")
@experiment_argument
@click.option(
    "--at-step", type=click.IntRange(min=0), required=True, metavar="N", help="Weight version to continue from."
)
@click.option("-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one field; repeatable.")
@click.option("--name", "fork_name", metavar="NAME", help="Name of the fork. Default: PARENT-fork-N.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label the fork; repeatable.")
@click.option("--wait", is_flag=True, help="Follow the fork to its end; exit 1 if it does not complete.")
@dry_run_option
@request_id_option
@shared_options
@click.pass_context
def fork(
    ctx: click.Context,
    name: str,
    at_step: int,
    overrides: tuple[str, ...],
    fork_name: str | None,
    labels: tuple[str, ...],
    wait: bool,
    dry_run: bool,
    request_id: str | None,
) -> None:
    """Start a new experiment from step N of experiment NAME, with its configuration and the given changes."""
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.views import commands

    settings: Settings = ctx.obj
    named = dict(pair(label) for label in labels)
    with Client(settings) as client:
        body = commands.Fork(at_step=at_step, set=_portable(client, name, overrides), name=fork_name, labels=named)
        if dry_run:
            answer = client.rehearse(commands.fork, body, name=name)
            show_consequence(answer.value, answer.plain(), settings)
            return
        accepted = client.send(commands.fork, body, name=name, request_id=request_id)
        receipt = accepted.value
        if settings.verbosity >= 0:
            for warning in receipt.warnings:
                say(f"warning: {warning}", err=True)
        history_note = f"shares steps 1 to {receipt.at_step} of {receipt.parent}"
        ctx.exit(taken_in(client, accepted, settings, history_note, wait=wait))


def _portable(client: Client, name: str, overrides: tuple[str, ...]) -> list[str]:
    """Returns the overrides in the daemon's form: paths absolute, `${...}` resolved here."""
    if not overrides:
        return []
    from rftd.daemon.config.loading import portable_overrides
    from rftd.daemon.http.views import experiments

    # The parent's configuration determines how an override is read: which fields are paths, and which of them are
    # relative.
    config = client.ask(experiments.one, name=name).value.experiment.config
    return portable_overrides(config, overrides)
