"""`--dry-run` of the verbs sending a command: the option, and the consequence as a line or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import one_line, say

if TYPE_CHECKING:
    from rftd.daemon.cli.settings import Settings
    from rftd.daemon.run.consequence import Consequence

dry_run_option = click.option("--dry-run", is_flag=True, help="Show what the command would do; record nothing.")
"""Adds `--dry-run`, passed as `dry_run`."""


def show_consequence(consequence: Consequence, plain: Any, settings: Settings) -> None:
    """Prints a consequence: `plain` for programs, else a line, with warnings on standard error."""
    if emitted(plain, settings):
        return
    for warning in consequence.warnings:
        say(f"warning: {one_line(warning)}", err=True)
    say(f"{one_line(f'{consequence.name}: {consequence.sentence}')}\nnothing was recorded")
