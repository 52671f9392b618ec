"""`rftd note`: a note, a star or labels on an experiment or on one of its rollouts; without any, those there are."""

from __future__ import annotations

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import one_line, say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.arguments import experiment_argument, request_id_option
from rftd.daemon.cli.verbs.rehearsal import dry_run_option, show_consequence
from rftd.daemon.http.views import annotations as view
from rftd.ops.clock import iso


@click.command("note")
@experiment_argument
@click.argument("text", required=False, default="")
@click.option("--rollout", metavar="ID", help="On this experience instead of the experiment.")
@click.option("--star/--no-star", default=None, help="Set or remove the star.")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Set a label, or KEY= to remove it.")
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def command(
    settings: Settings,
    name: str,
    text: str,
    rollout: str | None,
    star: bool | None,
    labels: tuple[str, ...],
    dry_run: bool,
    request_id: str | None,
) -> None:
    """Add the note TEXT, a star or labels to experiment NAME; without any, show those there are."""
    from uuid import UUID

    from rftd.daemon.http.client.client import Client

    try:
        experience = None if rollout is None else UUID(rollout)
    except ValueError:
        raise click.BadParameter(f"{rollout!r} is no id", param_hint="--rollout") from None
    with Client(settings) as client:
        present = client.ask(view.annotated, name=name)
        if not text and star is None and not labels:
            if not emitted(present.plain(), settings):
                _print_annotations(present.value)
            return
        present_labels = present.value.labels
        if experience is not None:
            present_labels = next(
                (mark.labels for mark in present.value.rollouts if mark.experience == str(experience)), {}
            )
        body = view.Annotate(
            experience=experience,
            note=text,
            star=star,
            labels=_changed_labels(present_labels, labels) if labels else None,
        )
        if dry_run:
            answer = client.rehearse(view.annotate, body, name=name)
            show_consequence(answer.value, answer.plain(), settings)
            return
        sent = client.send(view.annotate, body, name=name, request_id=request_id)
    if not emitted(sent.plain(), settings) and settings.verbosity >= 0:
        say(f"noted  {sent.value.event}")


def _changed_labels(present_labels: dict[str, str], changes: tuple[str, ...]) -> dict[str, str]:
    """Returns the labels with changes `KEY=VALUE`; `KEY=` removes a label."""
    labels = dict(present_labels)
    for change in changes:
        key, _, label_text = change.partition("=")
        labels.pop(key, None)
        if label_text:
            labels[key] = label_text
    return labels


def _print_annotations(found: view.AnnotationList) -> None:
    """Prints star, labels and notes of an experiment and its rollouts."""
    star = "starred  " if found.starred else ""
    labels = " ".join(f"{key}={label_text}" for key, label_text in found.labels.items())
    if star or labels:
        say(one_line(f"{star}{labels}"))
    elif not found.rollouts and not found.notes:
        say("no note, star or label")
    for mark in found.rollouts:
        marks = " ".join(f"{key}={label_text}" for key, label_text in mark.labels.items())
        say(one_line(f"rollout {mark.experience}  {'starred  ' if mark.starred else ''}{marks}"))
    for note in found.notes:
        author = f"  {note.author}" if note.author else ""
        rollout = f"  rollout {note.experience}" if note.experience else ""
        say(one_line(f"{iso(note.noted_ns)}{author}{rollout}  {note.text}"))
