"""`rftd pause`, `rftd resume`, `rftd cancel`: one command for each named experiment; and `rftd prioritize`.

All are idempotent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import one_line, say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument, experiments_argument, reason_option, request_id_option
from rftd.daemon.cli.verbs.rehearsal import dry_run_option, show_consequence
from rftd.daemon.http.views import commands, experiments

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client

PARTIAL: Final = 7
"""Exit status if some of several experiments failed."""
_TARGETS: Final = {"pause": "paused", "resume": "running", "cancel": "cancelled"}
"""State of an experiment after each command."""
_COMMANDS: Final = {"pause": commands.pause, "resume": commands.resume, "cancel": commands.cancel}
"""Command route of each verb."""


def _make_verb(name: str, text: str) -> click.Command:
    """Builds the verb `name` with the help `text`."""

    @click.command(name, help=text)
    @experiments_argument
    @reason_option
    @click.option("--wait", is_flag=True, help=f"Return once the experiment is {_TARGETS[name]}.")
    @dry_run_option
    @request_id_option
    @shared_options
    @click.pass_context
    def command(
        ctx: click.Context, names: tuple[str, ...], reason: str, wait: bool, dry_run: bool, request_id: str | None
    ) -> None:
        if request_id and len(names) > 1:
            raise click.UsageError("--request-id names one command; give one experiment", ctx=ctx)
        if dry_run:
            if wait:
                raise click.UsageError("--dry-run changes nothing to wait for: leave --wait out", ctx=ctx)
            ctx.exit(_on_each(names, ctx.obj, lambda client, named: _rehearse_one(client, name, named, reason)))
        ctx.exit(_run(name, names, ctx.obj, reason=reason, wait=wait, request_id=request_id))

    return command


pause = _make_verb("pause", "Pause experiments: current work is finished, and nothing new starts.")
"""Command `rftd pause`, which pauses each experiment named."""
resume = _make_verb("resume", "Resume paused experiments.")
"""Command `rftd resume`, which resumes each experiment named."""
cancel = _make_verb("cancel", "Cancel experiments; what they produced is kept.")
"""Command `rftd cancel`, which cancels each experiment named."""


# A negative priority looks like an option to click.
@click.command("prioritize", context_settings={"ignore_unknown_options": True})
@experiment_argument
@click.argument("priority", type=click.IntRange(-commands.MOST_PRIORITY, commands.MOST_PRIORITY))
@reason_option
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def prioritize(
    settings: Settings, name: str, priority: int, reason: str, dry_run: bool, request_id: str | None
) -> None:
    """Set the PRIORITY of experiment NAME, 0 by default: in the queue, the highest goes first.

    A running experiment continues; its priority counts when a daemon with fewer slots is started.
    """
    from rftd.daemon.http.client.client import Client

    body = commands.Prioritize(priority=priority, reason=reason)
    with Client(settings) as client:
        if dry_run:
            answer = client.rehearse(commands.prioritize, body, name=name)
            show_consequence(answer.value, answer.plain(), settings)
            return
        sent = client.send(commands.prioritize, body, name=name, request_id=request_id).value
        summary = client.ask(experiments.summary, name=sent.id, after=sent.position).value
    done = {
        "name": summary.name,
        "id": sent.id,
        "priority": summary.priority,
        "state": summary.state,
        "queue_position": summary.queue_position,
        "event": sent.event,
        "position": sent.position,
    }
    if not emitted(done, settings) and settings.verbosity >= 0:
        queue_place = f", number {summary.queue_position} in the queue" if summary.queue_position else ""
        say(f"{summary.name}  {summary.state}  priority {summary.priority}{queue_place}  {sent.event}")


def _run(
    verb: str, names: tuple[str, ...], settings: Settings, *, reason: str, wait: bool, request_id: str | None
) -> int:
    """Sends the command for each experiment; returns the exit status."""
    return _on_each(
        names,
        settings,
        lambda client, name: _send_one(client, verb, name, settings, reason=reason, wait=wait, key=request_id),
    )


def _rehearse_one(client: Client, verb: str, name: str, reason: str) -> dict[str, Any]:
    """Returns the consequence of a command on one experiment, as JSON."""
    outcome: dict[str, Any] = client.rehearse(_COMMANDS[verb], commands.Reason(reason=reason), name=name).plain()
    return outcome


def _on_each(names: tuple[str, ...], settings: Settings, carry_out: Callable[[Client, str], dict[str, Any]]) -> int:
    """Carries a command out for each experiment, and prints the receipts or consequences; returns the exit status."""
    from rftd.daemon.cli.output.failure import show
    from rftd.daemon.http.client.client import Client
    from rftd.ops.errors import RftdError

    done: list[dict[str, Any]] = []
    statuses: list[int] = []
    with Client(settings) as client:
        for name in names:
            try:
                done.append(carry_out(client, name))
                statuses.append(0)
            except RftdError as error:
                done.append({"name": name, "error": {"code": error.code, "what": error.what, "fix": error.fix}})
                statuses.append(error.exit_status)
                show(error, as_data=settings.output in ("json", "jsonl"))
    if not emitted({"items": done}, settings) and settings.verbosity >= 0:
        for receipt in (receipt for receipt in done if "state" in receipt):
            already = "already " if receipt["already"] else ""
            say(f"{receipt['name']}  {already}{receipt['state']}  {receipt['event'] or ''}".rstrip())
        rehearsed = [outcome for outcome in done if "sentence" in outcome]
        for outcome in rehearsed:
            say(one_line(f"{outcome['name']}: {outcome['sentence']}"))
        if rehearsed:
            say("nothing was recorded")
    failed = [status for status in statuses if status]
    return PARTIAL if failed and len(failed) < len(names) else (failed[0] if failed else 0)


def _send_one(
    client: Client, verb: str, name: str, settings: Settings, *, reason: str, wait: bool, key: str | None
) -> dict[str, Any]:
    """Sends a command to one experiment, with `wait` waits for the target state, and returns the receipt as JSON; an
    experiment already in the target state is no error.
    """
    from rftd.daemon.http.client.client import follow
    from rftd.ops.errors import ConflictError

    target = _TARGETS[verb]
    try:
        sent = client.send(_COMMANDS[verb], commands.Reason(reason=reason), name=name, request_id=key).value
    except ConflictError:
        summary = client.ask(experiments.summary, name=name).value
        if summary.state != target:
            raise
        return {"name": name, "id": summary.id, "state": target, "already": True, "event": None, "position": None}
    state = target
    if verb == "resume":  # a released experiment waits for its turn
        state = client.ask(experiments.summary, name=sent.id, after=sent.position).value.state
    if wait:
        for page in follow(client, sent.id, after=sent.position, patience_s=settings.answer_timeout_s):
            state = page.value.experiment.summary.state
            if state == target:
                break
    return {
        "name": name,
        "id": sent.id,
        "state": state,
        "already": False,
        "event": sent.event,
        "position": sent.position,
    }
