"""`rftd experiences find`: words in the answers of an experiment."""

from __future__ import annotations

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.quantity import number, shorts
from rftd.daemon.cli.output.table import labelled
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument
from rftd.daemon.http.views import words as word_views


@click.command("find")
@experiment_argument
@click.argument("words")
@click.option("--step", type=click.IntRange(0), help="Only the answers trained in this step.")
@click.option(
    "--limit", "-n", type=click.IntRange(1, 50), default=10, show_default=True, help="Maximum number of answers."
)
@shared_options
@click.pass_obj
def find(settings: Settings, name: str, words: str, step: int | None, limit: int) -> None:
    """Find answers of experiment NAME with all of the WORDS, newest first; '"words in quotes"' follow each other.

    The daemon indexes the answers when words are searched for the first time, which takes minutes for a large
    experiment; the progress is printed.
    """
    from rftd.daemon.http.client.client import Client

    shown_percent = -1
    with Client(settings) as client:
        while True:
            answer = client.ask(word_views.words, name=name, q=words, step=step, limit=limit)
            percent = int(100 * answer.value.share)
            if answer.value.share >= 1:
                break
            if percent > shown_percent and settings.verbosity >= 0:
                say(f"indexing: {percent} % ({answer.value.indexed} answers)", err=True)
                shown_percent = percent
    if emitted(answer.plain(), settings):
        return
    rows = [item.experience for item in answer.value.items]
    for id, item in zip(shorts([row.id for row in rows]), answer.value.items, strict=True):
        row = item.experience
        step_text = "" if row.step is None else f", step {row.step}"
        say(labelled(id, f"reward {number(row.reward)}, version {row.newest_version}{step_text}"))
        say(labelled("", item.passage))
    say(f"{answer.value.total} of {answer.value.indexed} answers", err=True)
    for note in answer.value.notes:
        say(f"note: {note}", err=True)
