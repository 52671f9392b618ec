"""`rftd dlq`: dead letters, and the verdicts on them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from rftd.daemon.cli.log_option import log_option
from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import age
from rftd.daemon.cli.output.table import console_of, state, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import page_options, reason_option, request_id_option
from rftd.daemon.cli.verbs.rehearsal import dry_run_option, show_consequence
from rftd.daemon.http.views import dead_letters
from rftd.daemon.http.views.route import CommandRoute
from rftd.daemon.run.dlq.letter import (
    DeadLetter,
    DeadLetterList,
    DeadLetterPage,
    DeadLetterReceipt,
    listed,
    meant,
)
from rftd.ops.clock import SystemClock, iso

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Answer, Client
    from rftd.streams.log.backend import LogUrl
    from rftd.streams.log.log import EventLog

B = TypeVar("B", bound=msgspec.Struct)
"""Type of a command's body."""

WHICH = """ID is an id from `rftd dlq ls`, NAME/task/STAGE.SEQUENCE, or 8 or more hex digits of a group's id."""
"""Paragraph of the help on the argument ID."""


@click.group("dlq")
def dlq() -> None:
    """Dead letters: records that no reader could use, and tasks of which too few rollouts succeeded."""


@dlq.command("ls")
@click.option("--experiment", metavar="NAME", help="Only tasks of this experiment.")
@click.option("--all", "everything", is_flag=True, help="Include those that were retried or dropped.")
@page_options
@log_option
@shared_options
@click.pass_obj
def ls(
    settings: Settings, experiment: str | None, everything: bool, limit: int, cursor: str | None, log_at: LogUrl | None
) -> None:
    """List the open dead letters, newest first. Without a daemon, the log itself is read."""
    from rftd.daemon.http.client.client import asked_or_read

    async def read(log: EventLog) -> DeadLetterList:
        from rftd.daemon.run.dlq.dead_letter_service import dead_offline
        from rftd.daemon.run.registry import find_entry

        dead = await dead_offline(log)
        id = (await find_entry(log, experiment)).id if experiment else None
        return listed(dead, everything=everything, experiment=id, limit=limit, cursor=cursor)

    def ask(client: Client) -> Answer[DeadLetterList]:
        return client.ask(dead_letters.many, experiment=experiment, all=everything, limit=limit, cursor=cursor)

    letters, plain = asked_or_read(settings, log_at, ask, read)
    if not emitted(plain, settings):
        _print_list(letters, settings, everything=everything)


@dlq.command("show", help=f"Show one dead letter, with the record or the attempts behind it.\n\n{WHICH}")
@click.argument("id")
@log_option
@shared_options
@click.pass_obj
def show(settings: Settings, id: str, log_at: LogUrl | None) -> None:
    """Shows one dead letter."""
    from rftd.daemon.http.client.client import asked_or_read

    async def read(log: EventLog) -> DeadLetterPage:
        from rftd.daemon.run.dlq.dead_letter_service import dead_offline

        return await dead_letters.page_of(log, meant(await dead_offline(log), id))

    page, plain = asked_or_read(settings, log_at, lambda client: client.ask(dead_letters.one, id=id), read)
    if not emitted(plain, settings):
        _print_page(page, settings)


@dlq.command("retry", help=f"Retry a dead letter: a failed task is leased again.\n\n{WHICH}")
@click.argument("id")
@reason_option
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def retry(settings: Settings, id: str, reason: str, dry_run: bool, request_id: str | None) -> None:
    """Retries a dead letter; a failed task gets a fresh number of attempts."""
    body = dead_letters.Decide(id=id, by=_user_name(), reason=reason)
    _send_verdict(settings, dead_letters.retry, body, request_id, dry_run=dry_run)


@dlq.command("drop", help=f"Drop a dead letter that needs no more attention.\n\n{WHICH}")
@click.argument("id")
@click.option("--reason", required=True, help="Reason, kept with the event.")
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def drop(settings: Settings, id: str, reason: str, dry_run: bool, request_id: str | None) -> None:
    """Drops a dead letter from the list; it stays in the log."""
    body = dead_letters.Drop(id=id, by=_user_name(), reason=reason)
    _send_verdict(settings, dead_letters.drop, body, request_id, dry_run=dry_run)


def _send_verdict(
    settings: Settings,
    verdict: CommandRoute[B, DeadLetterReceipt],
    body: B,
    request_id: str | None,
    *,
    dry_run: bool,
) -> None:
    """Sends a verdict and prints the receipt, or its consequence with `dry_run`."""
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        if dry_run:
            rehearsed = client.rehearse(verdict, body)
            show_consequence(rehearsed.value, rehearsed.plain(), settings)
            return
        answer = client.send(verdict, body, request_id=request_id)
    if not emitted(answer.plain(), settings) and settings.verbosity >= 0:
        say(f"{answer.value.id}  {'already ' if answer.value.already else ''}{answer.value.state}")


def _user_name() -> str:
    """Returns the login name of this user; empty if unknown."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return ""


def _print_list(letters: DeadLetterList, settings: Settings, *, everything: bool) -> None:
    """Prints a line for each dead letter."""
    if not letters.items:
        say("no dead letters" if everything else "no open dead letters", err=True)
        return
    clock = SystemClock()
    rows = [
        (
            letter.task or letter.id,
            letter.kind,
            state(letter.state),
            str(letter.attempts) if letter.kind == "task" else "-",
            age(letter.found_ns, clock),
            letter.code,
            letter.reason,
        )
        for letter in letters.items
    ]
    headers = ("ID", "WHAT", "STATE", "ATTEMPTS", "AGE", "CODE", "REASON")
    console = console_of(settings)
    right = ("ATTEMPTS", "AGE")
    whole = ("ID", "WHAT", "STATE", "CODE")
    go = ("ATTEMPTS", "WHAT", "AGE")
    console.print(table(headers, rows, right=right, whole=whole, width=console.width, first_to_go=go))
    if letters.next is not None and settings.verbosity >= 0:
        say(f"next page: --cursor {letters.next}", err=True)


def _print_page(shown: DeadLetterPage, settings: Settings) -> None:
    """Prints a dead letter with the record or the attempts."""
    letter = shown.letter
    say(f"{letter.task or letter.kind} {letter.id} is {letter.state}{_verdict_words(letter)}")
    if letter.code or letter.reason:
        say(": ".join(filter(None, (letter.code, letter.reason))))
    if letter.kind == "task":
        clock = SystemClock()
        rows = [
            (
                str(attempt.attempt),
                str(attempt.slot),
                attempt.worker,
                age(attempt.leased_ns, clock),
                attempt.ended or "its rollouts ended",
            )
            for attempt in shown.tries
        ]
        headers = ("ATTEMPT", "SLOT", "WORKER", "AGE", "END")
        console_of(settings).print(table(headers, rows, right=("AGE",), whole=("WORKER",)))
    else:
        say(json.dumps(shown.record, indent=2))


def _verdict_words(letter: DeadLetter) -> str:
    """Returns author, time and reason of a verdict; empty for an open letter."""
    if letter.decided_ns is None:
        return ""
    who = f" by {letter.by}" if letter.by else ""
    return f"{who} at {iso(letter.decided_ns)}{': ' + letter.verdict if letter.verdict else ''}"
