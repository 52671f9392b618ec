"""`rftd lineage`: what a thing was made of, and what became of it."""

from __future__ import annotations

import click

from rftd.daemon.settings import Settings, shared_options


@click.command("lineage")
@click.argument("id")
@click.option("--direction", type=click.Choice(("both", "up", "down")), default="both", show_default=True)
@click.option("--depth", type=click.IntRange(0, 1000), default=4, show_default=True, help="How far to go.")
@click.option("--all", "everything", is_flag=True, help="Everything beside each thing, not the first 20 of a kind.")
@click.option(
    "--format", "form", type=click.Choice(("tree", "dot")), default="tree", show_default=True, help="dot: for Graphviz."
)
@shared_options
@click.pass_obj
def command(settings: Settings, id: str, direction: str, depth: int, everything: bool, form: str) -> None:
    """What ID was made of (up), and what became of it (down).

    ID is any id, 8 or more of its hex digits, the name of an experiment, or one of NAME/task/STAGE.SEQUENCE,
    NAME/batch/STEP, NAME/eval/VERSION, NAME/step/N, NAME/weights/N, NAME/checkpoint/N; the last three may have
    .GENERATION after them.
    """
    from rftd.daemon.client.client import Client

    children = 100_000 if everything else None
    with Client(settings) as client:
        answer = client.lineage(id, direction=direction, depth=depth, children=children)
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(answer.plain(), settings)
        return
    from rftd.daemon.output.lineage import dot, tree

    click.echo(dot(answer.value) if form == "dot" else tree(answer.value))
