"""Dead letters, one line for each, and one with what lies behind it."""

from __future__ import annotations

import json
from typing import Final

import click

from rftd.daemon.client.replies import DeadLetter, DeadLetterPage, DeadLetters
from rftd.daemon.output.quantity import age
from rftd.daemon.output.table import console_of, state, table
from rftd.daemon.settings import Settings
from rftd.ops.clock import SystemClock

_REASON_CHARACTERS: Final = 80


def lines(letters: DeadLetters, settings: Settings, *, everything: bool) -> None:
    """Prints the list."""
    if not letters.items:
        click.echo("no dead letters" if everything else "no open dead letters", err=True)
        return
    clock = SystemClock()
    rows = [
        (
            each.id,
            each.task or each.kind,
            state(each.state),
            str(each.attempts) if each.kind == "task" else "-",
            age(each.found_at, clock),
            each.code,
            _short(each.reason),
        )
        for each in letters.items
    ]
    headers = ("ID", "WHAT", "STATE", "ATTEMPTS", "AGE", "CODE", "REASON")
    console_of(settings).print(table(headers, rows, right=frozenset({"ATTEMPTS", "AGE"})))
    if letters.next is not None and settings.verbosity >= 0:
        click.echo(f"there are more: --offset {letters.next}", err=True)


def page(shown: DeadLetterPage, settings: Settings) -> None:
    """Prints one."""
    letter = shown.letter
    click.echo(f"{letter.task or letter.kind} {letter.id} is {letter.state}{_decided(letter)}")
    click.echo(f"{letter.code}: {letter.reason}")
    if letter.kind == "task":
        clock = SystemClock()
        rows = [
            (
                str(each.attempt),
                str(each.slot),
                each.worker,
                age(each.leased_at, clock),
                each.ended or "its rollouts ended",
            )
            for each in shown.tries
        ]
        console_of(settings).print(table(("ATTEMPT", "SLOT", "WORKER", "AGE", "END"), rows, right=frozenset({"AGE"})))
    else:
        click.echo(json.dumps(shown.record, indent=2))


def _decided(letter: DeadLetter) -> str:
    if letter.decided_at is None:
        return ""
    who = f" by {letter.by}" if letter.by else ""
    return f"{who} at {letter.decided_at}{': ' + letter.verdict if letter.verdict else ''}"


def _short(text: str) -> str:
    return text if len(text) <= _REASON_CHARACTERS else f"{text[: _REASON_CHARACTERS - 1]}…"
